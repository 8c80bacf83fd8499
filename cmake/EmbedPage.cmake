# cmake -DFOLDER=... -DOUTPUT=... -P EmbedPage.cmake: see AttestPage.cmake.
cmake_minimum_required(VERSION 3.25)

# The base64 form of a SHA-256, as a Content-Security-Policy names the scripts and styles that may run. 64 hex digits
# are 21 groups of 12 bits and 4 bits over.
function(base64_sha256 text result)
  string(SHA256 hex "${text}")
  set(alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  set(out "")
  foreach(begin RANGE 0 60 3)
    string(SUBSTRING ${hex} ${begin} 3 digits)
    math(EXPR high "0x${digits} >> 6")
    math(EXPR low "0x${digits} & 63")
    string(SUBSTRING ${alphabet} ${high} 1 a)
    string(SUBSTRING ${alphabet} ${low} 1 b)
    string(APPEND out ${a}${b})
  endforeach()
  string(SUBSTRING ${hex} 63 1 digit)
  math(EXPR last "0x${digit} << 2")
  string(SUBSTRING ${alphabet} ${last} 1 a)
  set(${result} "${out}${a}=" PARENT_SCOPE)
endfunction()

# Puts the file that `reference` names between `open` and `close`, and its hash on the list `hashes`.
macro(inline_file reference name open close hashes)
  file(READ "${FOLDER}/${name}" text)
  if(text MATCHES "</(script|style)")
    message(FATAL_ERROR "${FOLDER}/${name}: </script or </style would end the element it is embedded in")
  endif()
  base64_sha256("${text}" hash)
  string(APPEND ${hashes} " 'sha256-${hash}'")
  string(REPLACE "${reference}" "${open}${text}${close}" html "${html}")
endmacro()

file(READ "${FOLDER}/index.html" html)
set(scripts "")
set(styles "")
string(REGEX MATCHALL "<link rel=\"stylesheet\" href=\"[a-z_]+\\.css\">" links "${html}")
foreach(reference IN LISTS links)
  string(REGEX REPLACE ".*href=\"([a-z_.]+)\".*" "\\1" name "${reference}")
  inline_file("${reference}" ${name} "<style>" "</style>" styles)
endforeach()
string(REGEX MATCHALL "<script src=\"[a-z_]+\\.js\"></script>" references "${html}")
foreach(reference IN LISTS references)
  string(REGEX REPLACE ".*src=\"([a-z_.]+)\".*" "\\1" name "${reference}")
  inline_file("${reference}" ${name} "<script>" "</script>" scripts)
endforeach()
if(html MATCHES "<script [^>]*src|<link rel=\"stylesheet\"" OR styles STREQUAL "" OR scripts STREQUAL "")
  message(FATAL_ERROR "${FOLDER}/index.html: a script or style sheet was not embedded")
endif()

# Nothing may be loaded or asked for but this server's own routes; data: is the icon.
string(CONCAT policy "default-src 'none'; script-src${scripts}; style-src${styles}; connect-src 'self'; img-src data:; "
       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
string(SHA256 tag "${policy}${html}")
string(SUBSTRING ${tag} 0 32 tag)

if(html MATCHES "\\)page\"")
  message(FATAL_ERROR "${FOLDER}: )page\" would end the literal it is embedded in")
endif()
file(WRITE "${OUTPUT}" "// Made by cmake/EmbedPage.cmake from src/server/page.
#include \"server/page.h\"

namespace attest {

extern const std::string_view kPageHtml = R\"page(${html})page\";
extern const std::string_view kPagePolicy = R\"(${policy})\";
extern const std::string_view kPageTag = R\"(\"${tag}\")\";

}  // namespace attest
")
