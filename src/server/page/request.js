// What goes to the server and what comes back: headers with the key, errors as values with a field, events of a stream,
// and the same request as a curl command.
"use strict";

const KEY_ITEM = "attest.api-key";

// The key lives in sessionStorage alone: this tab, until it is closed. Where a browser keeps nothing, until a reload.
const ApiKey = (() => {
  let current = "";
  try {
    current = sessionStorage.getItem(KEY_ITEM) ?? "";
  } catch { /* storage is forbidden */
  }
  return {
    get: () => current,
    set(key) {
      current = key;
      try {
        if (key)
          sessionStorage.setItem(KEY_ITEM, key);
        else
          sessionStorage.removeItem(KEY_ITEM);
      } catch { /* as above */
      }
    },
  };
})();

// status 0: the server did not answer.
class ApiError extends Error {
  constructor(status, message, {field = null, retryAfter = null} = {}) {
    super(message);
    Object.assign(this, {status, field, retryAfter});
  }
}

const Api = (() => {
  function headers(hasBody) {
    const all = {};
    if (hasBody) all["Content-Type"] = "application/json";
    if (ApiKey.get()) all.Authorization = `Bearer ${ApiKey.get()}`;
    return all;
  }

  async function call(path, {body, signal} = {}) {
    let response;
    try {
      response = await fetch(path, {
        method: body === undefined ? "GET" : "POST",
        headers: headers(body !== undefined),
        body,
        signal,
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server does not answer.");
    }
    if (response.ok) return response;
    let said = {};
    try {
      said = (await response.json()).error ?? {};
    } catch { /* a proxy's page: its status says enough */
    }
    throw new ApiError(response.status, said.message ?? `The server answered ${response.status}.`, {
      field: said.param ?? null,
      retryAfter: Number(response.headers.get("Retry-After")) || null,
    });
  }

  const getJson = async (path, options) => (await call(path, options)).json();

  // The objects of a stream; ends with [DONE], and throws where the stream breaks off before.
  async function* events(path, body, signal) {
    const response = await call(path, {body, signal});
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    for (;;) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError(0, "The connection broke off before the answer was complete.");
      }
      if (part.done) throw new ApiError(0, "The connection ended before the answer was complete.");
      buffer += part.value;
      for (let end; (end = buffer.indexOf("\n\n")) >= 0;) {
        const event = buffer.slice(0, end);
        buffer = buffer.slice(end + 2);
        if (!event.startsWith("data: ")) continue;  // a comment that keeps the connection open
        const data = event.slice(6);
        if (data === "[DONE]") return;
        const object = JSON.parse(data);
        if (object.error)
          throw new ApiError(object.error.code ?? 500, object.error.message, {field: object.error.param});
        yield object;
      }
    }
  }

  return {getJson, events};
})();

const Curl = (() => {
  // Text as one word of a POSIX shell.
  const quote = (text) => `'${text.replace(/'/g, "'\\''")}'`;
  const MAX_ARGUMENT = 100_000;  // Linux takes 128 KiB in one argument

  // The command that sends `body` (an object) to `path`. With a key it wants the variable ATTEST_API_KEY: the key
  // itself is never shown.
  function command(origin, path, body, hasKey) {
    const json = JSON.stringify(body, null, 2);
    const lines = [`curl -sS -N ${quote(origin + path)}`, "  -H 'Content-Type: application/json'"];
    if (hasKey) lines.push("  -H \"Authorization: Bearer $ATTEST_API_KEY\"");
    if (new TextEncoder().encode(json).length > MAX_ARGUMENT) {
      return `${[...lines, "  --data-binary @- <<'END_OF_BODY'"].join(" \\\n")}\n${json}\nEND_OF_BODY`;
    }
    return [...lines, `  -d ${quote(json)}`].join(" \\\n");
  }

  return {command, quote};
})();
