/* BF16 weights times activations with AMX, the matrix unit of Intel's processors since Sapphire Rapids. llama.cpp uses
 * AMX only for quantised weights.
 *
 * Compiled into ggml's processor backend (llama_wheel.cmake); the linker replaces calls of llamafile_sgemm by
 * __wrap_llamafile_sgemm. A processor without AMX computes as before.
 *
 * c[n][m] = b[n][k] * a[m][k], where `a` are the weights in BF16, and `b` and `c` are float32. Activations are rounded
 * to BF16 and sums are float32, as in llama.cpp's own product. The layout of tiles and TDPBF16PS:
 * https://www.intel.com/content/www/us/en/docs/intrinsics-guide/
 */
#include "ggml-cpu-impl.h"
#include "ggml.h"

#define SGEMM_PARAMETERS                                                                                               \
    const struct ggml_compute_params *params, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda,             \
        const void *b, int64_t ldb, void *c, int64_t ldc, int a_type, int b_type, int c_type

bool __real_llamafile_sgemm(SGEMM_PARAMETERS);
bool __wrap_llamafile_sgemm(SGEMM_PARAMETERS);

#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 14 : __GNUC__ >= 12)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WITH_AMX __attribute__((target("avx512f,avx512bw,avx512bf16,amx-tile,amx-bf16")))
#define TILE 16     /* rows of a tile, and float32 numbers of a row */
#define DEPTH 32    /* BF16 numbers of a row */
#define STRIP 32    /* rows of weights that are multiplied at once: two tiles */
#define BLOCK 128   /* columns that stay in the L2 cache while the rows of a part are read */
#define PARTS 4     /* of each thread: fast threads take more */
#define REQUEST_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM, https://docs.kernel.org/arch/x86/xstate.html */
#define TILE_DATA 18

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

struct product {
    const uint16_t *a; /* weights */
    int64_t lda, m, k;
    const uint16_t *b; /* packed activations */
    int64_t n;
    float *c;
    int64_t ldc;
};

__asm__(".ident \"allm tiles of BF16\""); /* llama_fixed.py looks for it */

static bool has_amx(void) {
    static int known = -1; /* every thread finds the same */
    if (known < 0) {
        unsigned a, b, c, features, more = 0;
        const bool listed = __get_cpuid_count(7, 0, &a, &b, &c, &features) && features & bit_AMX_BF16 &&
                            __get_cpuid_count(7, 1, &more, &b, &c, &features) && more & bit_AVX512BF16;
        known = listed && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    }
    return known;
}

/* GCC's own intrinsics name only 8 of the 64 bytes. */
static void store_config(struct tile_config *config) {
    __asm__ volatile("sttilecfg\t%X0" : "=m"(*config));
}

static void load_config(const struct tile_config *config) {
    __asm__ volatile("ldtilecfg\t%X0" ::"m"(*config));
}

static int64_t lesser(int64_t one, int64_t other) {
    return one < other ? one : other;
}

/* Transposes a matrix of 16 x 16 numbers of 32 bits: pairs, then fours, then eights of rows change places. */
static inline WITH_AMX void transpose(__m512i r[TILE]) {
    __m512i t[TILE], u[TILE];
    for (int i = 0; i < TILE; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < TILE; i += 4) {
        u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        const __m512i even_low = _mm512_shuffle_i32x4(u[i], u[4 + i], 0x88);
        const __m512i even_high = _mm512_shuffle_i32x4(u[8 + i], u[12 + i], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(u[i], u[4 + i], 0xdd);
        const __m512i odd_high = _mm512_shuffle_i32x4(u[8 + i], u[12 + i], 0xdd);
        r[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        r[4 + i] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
        r[12 + i] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
}

/* Rounds one part of the activations to BF16 and packs it as TDPBF16PS reads its second operand: tiles of up to 16
 * columns, each row with a pair of numbers of every column. */
static WITH_AMX void pack(const float *b, int64_t ldb, int64_t n, int64_t k, uint16_t *packed, int ith, int nth) {
    const int64_t deep = k / DEPTH, tiles = (n + TILE - 1) / TILE * deep;
    for (int64_t tile = tiles * ith / nth; tile < tiles * (ith + 1) / nth; tile++) {
        const int64_t column = tile / deep * TILE, depth = tile % deep * DEPTH;
        const int64_t width = lesser(TILE, n - column);
        __m512i rows[TILE];
        for (int64_t i = 0; i < TILE; i++) {
            const float *from = b + (column + i) * ldb + depth;
            rows[i] = i < width ? (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + TILE), _mm512_loadu_ps(from))
                                : _mm512_setzero_si512();
        }
        transpose(rows);
        uint16_t *to = packed + column * k + depth * width;
        for (int i = 0; i < TILE; i++) {
            _mm512_mask_storeu_epi32(to + i * 2 * width, (__mmask16)((1u << width) - 1), rows[i]);
        }
    }
}

/* Writes a tile of sums [row][column] to c[column][row]. */
static inline WITH_AMX void put(const float sums[TILE * TILE], float *c, int64_t ldc, int64_t width) {
    __m512i rows[TILE];
    for (int i = 0; i < TILE; i++) {
        rows[i] = _mm512_load_si512(sums + i * TILE);
    }
    transpose(rows);
    for (int64_t i = 0; i < width; i++) {
        _mm512_storeu_si512(c + i * ldc, rows[i]);
    }
}

/* Configures the tiles for two columns of tiles, of which the second may be absent: 0 to 3 are sums, 4 and 5 weights,
 * 6 and 7 activations. */
static void configure(int64_t first, int64_t second) {
    struct tile_config config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const int64_t width = i == 4 || i == 5 ? TILE : i % 2 && second ? second : first;
        config.rows[i] = TILE;
        config.row_bytes[i] = (uint16_t)(4 * width);
    }
    load_config(&config);
}

/* Multiplies STRIP rows from `row` with the columns from `column`, two tiles at most, of the configured widths. */
static WITH_AMX void multiply(const struct product *p, int64_t row, int64_t column, int64_t first, int64_t second) {
    const uint16_t *low = p->a + row * p->lda, *high = low + TILE * p->lda;
    const uint16_t *left = p->b + column * p->k, *right = left + TILE * p->k;
    const int64_t stride = 2 * p->lda, next = row + 2 * STRIP <= p->m ? STRIP * p->lda : 0;
    _Alignas(64) float sums[4][TILE * TILE];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t depth = 0; depth < p->k; depth += DEPTH) {
        if (column == 0) {
            for (int64_t i = 0; i < STRIP; i++) {
                _mm_prefetch((const char *)(low + next + i * p->lda + depth), _MM_HINT_T0);
            }
        }
        _tile_loadd(4, low + depth, stride);
        _tile_loadd(5, high + depth, stride);
        _tile_loadd(6, left + depth * first, 4 * first);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
        if (second) {
            _tile_loadd(7, right + depth * second, 4 * second);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], 4 * TILE);
    _tile_stored(2, sums[2], 4 * TILE);
    float *c = p->c + column * p->ldc + row;
    put(sums[0], c, p->ldc, first);
    put(sums[2], c + TILE, p->ldc, first);
    if (second) {
        _tile_stored(1, sums[1], 4 * TILE);
        _tile_stored(3, sums[3], 4 * TILE);
        c += TILE * p->ldc;
        put(sums[1], c, p->ldc, second);
        put(sums[3], c + TILE, p->ldc, second);
    }
}

/* Computes the strips from `start` to `end`. The last strip of all may overlap the one before it. */
static void multiply_strips(const struct product *p, int64_t start, int64_t end) {
    int64_t widths[2] = {0, 0};
    for (int64_t block = 0; block < p->n; block += BLOCK) {
        for (int64_t strip = start; strip < end; strip++) {
            const int64_t row = lesser(strip * STRIP, p->m - STRIP);
            for (int64_t column = block; column < lesser(block + BLOCK, p->n); column += 2 * TILE) {
                const int64_t left = p->n - column;
                const int64_t first = lesser(TILE, left), second = lesser(TILE, left - first);
                if (first != widths[0] || second != widths[1]) {
                    configure(widths[0] = first, widths[1] = second);
                }
                multiply(p, row, column, first, second);
            }
        }
    }
}

bool __wrap_llamafile_sgemm(SGEMM_PARAMETERS) {
    /* llama.cpp asks once with the activations as they are, and later, unless all is done, with rounded ones. */
    const bool mine = a_type == GGML_TYPE_BF16 && b_type == GGML_TYPE_F32 && c_type == GGML_TYPE_F32;
    if (!mine || m < STRIP || k % DEPTH || params->wsize < (size_t)(2 * n * k) || !has_amx()) {
        return __real_llamafile_sgemm(params, m, n, k, a, lda, b, ldb, c, ldc, a_type, b_type, c_type);
    }
    static _Thread_local const float *following;
    if (b == following) {
        ggml_barrier(params->threadpool); /* of one operation: others may still read what the one before has packed */
    }
    following = (const float *)b + n * ldb;
    pack(b, ldb, n, k, params->wdata, params->ith, params->nth);
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);

    struct tile_config before;
    store_config(&before); /* the kernels for quantised weights configure each thread only once */
    const struct product product = {a, lda, m, k, params->wdata, n, c, ldc};
    const int64_t strips = (m + STRIP - 1) / STRIP, parts = lesser(strips, (int64_t)PARTS * params->nth);
    for (int64_t part = params->ith; part < parts; part = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        multiply_strips(&product, strips * part / parts, strips * (part + 1) / parts);
    }
    if (before.palette) {
        load_config(&before);
    } else {
        __asm__ volatile("tilerelease");
    }
    return true;
}

#else

bool __wrap_llamafile_sgemm(SGEMM_PARAMETERS) {
    return __real_llamafile_sgemm(params, m, n, k, a, lda, b, ldb, c, ldc, a_type, b_type, c_type);
}

#endif
