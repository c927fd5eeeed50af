# Options of llama-cpp-python's build, for CMAKE_PROJECT_llama_cpp_INCLUDE. It builds llama.cpp's common library always,
# which allm does not use and which takes longest. A variable precedes the cache entry that is forced on afterwards
# (https://cmake.org/cmake/help/latest/policy/CMP0126.html).
set(LLAMA_BUILD_COMMON OFF)
# mtmd encodes pictures. Videos would need ffmpeg, and nothing is decoded in a worker.
set(MTMD_VIDEO OFF)
# Its model files include the same headers and take little time of their own: together they compile in half the time.
# LLaVA's class embedding comes before the patches, as CLIP was trained (llama_build.py does the same).
function(allm_prepare_mtmd)
  get_target_property(folder mtmd SOURCE_DIR)
  file(READ "${folder}/models/llava.cpp" llava)
  string(REPLACE "(ctx0, inp, model.class_embedding, 1)" "(ctx0, model.class_embedding, inp, 1)" llava "${llava}")
  file(WRITE "${folder}/models/llava.cpp" "${llava}")
  get_target_property(others mtmd SOURCES)
  list(FILTER others EXCLUDE REGEX "^models/")
  list(TRANSFORM others PREPEND "${folder}/")
  set_source_files_properties(${others} TARGET_DIRECTORY mtmd PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
endfunction()
cmake_language(DEFER CALL allm_prepare_mtmd)
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${CMAKE_CURRENT_LIST_DIR}/llama_fixes.h>")

# Linked into ggml's processor backend, a target that exists at the end of the configuration.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(BF16_WITH_AMX ${CMAKE_CURRENT_LIST_DIR}/llama_bf16.c)
  cmake_language(DEFER CALL target_sources ggml-cpu PRIVATE ${BF16_WITH_AMX})
  cmake_language(DEFER CALL target_link_options ggml-cpu PRIVATE -Wl,--wrap=llamafile_sgemm)
endif()
