# Options of llama-cpp-python's build, for CMAKE_PROJECT_llama_cpp_INCLUDE. It builds llama.cpp's common library and mtmd
# always; allm uses neither, and they take more than half of the time. A variable precedes the cache entry that is forced
# on afterwards (https://cmake.org/cmake/help/latest/policy/CMP0126.html).
set(LLAMA_BUILD_COMMON OFF)
set(LLAVA_BUILD OFF)
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${CMAKE_CURRENT_LIST_DIR}/llama_fixes.h>")

# Linked into ggml's processor backend, a target that exists at the end of the configuration.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(BF16_WITH_AMX ${CMAKE_CURRENT_LIST_DIR}/llama_bf16.c)
  cmake_language(DEFER CALL target_sources ggml-cpu PRIVATE ${BF16_WITH_AMX})
  cmake_language(DEFER CALL target_link_options ggml-cpu PRIVATE -Wl,--wrap=llamafile_sgemm)
endif()
