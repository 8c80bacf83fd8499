# attest_embed_page(TARGET FOLDER): compiles FOLDER/index.html into TARGET as one document. Its <link rel="stylesheet"
# href="X"> and <script src="X"></script> become the contents of the files X, so the page needs no second request, and
# the folder also works as it is, from any file server. Declared in src/server/page.h.
set(ATTEST_EMBED_PAGE ${CMAKE_CURRENT_LIST_DIR}/EmbedPage.cmake)

function(attest_embed_page target folder)
  if(NOT TARGET ${target})
    return()
  endif()
  set(output ${CMAKE_BINARY_DIR}/generated/${target}_page.cc)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.html ${folder}/*.css ${folder}/*.js)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DFOLDER=${folder} -DOUTPUT=${output} -P ${ATTEST_EMBED_PAGE}
    DEPENDS ${sources} ${ATTEST_EMBED_PAGE} COMMENT "Embedding the page" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
