/* Included first in every C++ file of llama.cpp that is compiled for the machine itself (Makefile, llama_build.py).
 *
 * GCC's _tile_loadconfig names only the first 8 of the 64 bytes that ldtilecfg reads, so the optimiser drops the stores
 * to the others. On processors with AMX the instruction then faults, and with it every worker of a quantised model:
 * https://github.com/ggml-org/llama.cpp/pull/26954. This one names all 64 bytes. */
#if defined(__cplusplus) && defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
static inline void allm_tile_loadconfig(const void * config) {
    __asm__ volatile("ldtilecfg\t%X0" ::"m"(*static_cast<const char(*)[64]>(config)));
}
#define _tile_loadconfig allm_tile_loadconfig
#endif
