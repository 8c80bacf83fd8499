#include "server/api_error.h"

#include "server/json_writer.h"

namespace attest {

int HttpStatusOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kResourceExhausted:  // this request can never fit: trying again does not help
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kCorruptFile:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      break;
  }
  return 500;
}

std::string_view ErrorTypeOf(int status) {
  switch (status) {
    case 401:
      return "AuthenticationError";
    case 404:
      return "NotFoundError";
    case 405:
      return "MethodNotAllowedError";
    case 408:
      return "RequestTimeoutError";
    case 413:
      return "RequestTooLargeError";
    case 431:
      return "HeaderTooLargeError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return status < 500 ? "BadRequestError" : "InternalServerError";
  }
}

std::string ErrorBody(int status, std::string_view message, std::string_view param) {
  std::string out;
  JsonWriter json(out);
  json.BeginObject().Key("error").BeginObject();
  json.Key("message").String(message).Key("type").String(ErrorTypeOf(status)).Key("param");
  if (param.empty()) {
    json.Null();
  } else {
    json.String(param);
  }
  json.Key("code").Int(status).EndObject().EndObject();
  return out;
}

}  // namespace attest
