/* Included first in every C++ file of llama.cpp that is compiled for the machine itself (Makefile, llama_build.py). */
#if defined(__cplusplus) && defined(__GNUC__)

/* GCC's _tile_loadconfig names only the first 8 of the 64 bytes that ldtilecfg reads, so the optimiser drops the stores
 * to the others. On processors with AMX the instruction then faults, and with it every worker of a quantised model:
 * https://github.com/ggml-org/llama.cpp/pull/26954. This one names all 64 bytes. */
#if defined(__AMX_TILE__) && !defined(__clang__)
#include <immintrin.h>
static inline void allm_tile_loadconfig(const void * config) {
    __asm__ volatile("ldtilecfg\t%X0" ::"m"(*static_cast<const char(*)[64]>(config)));
}
#define _tile_loadconfig allm_tile_loadconfig
#endif

/* On processors with AVX512-FP16, ggml adds vectors of 16-bit numbers in steps of 128 numbers, and the rest one by one:
 * all 64 of a head of that size, for every cached token that flash attention reads. One register holds 32. */
#if defined(__AVX512FP16__) && __has_include("simd-mappings.h")
#include "simd-mappings.h"
#undef GGML_F16_STEP
#define GGML_F16_STEP 32
__asm__(".ident \"allm steps of 32\""); /* llama_fixed.py looks for it */
#endif

#endif
