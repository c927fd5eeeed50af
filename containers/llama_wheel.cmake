# Options of llama-cpp-python's build, for CMAKE_PROJECT_llama_cpp_INCLUDE. It builds llama.cpp's common library and mtmd
# always; allm uses neither, and they take more than half of the time. A variable precedes the cache entry that is forced
# on afterwards (https://cmake.org/cmake/help/latest/policy/CMP0126.html).
set(LLAMA_BUILD_COMMON OFF)
set(LLAVA_BUILD OFF)
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${CMAKE_CURRENT_LIST_DIR}/llama_fixes.h>")
