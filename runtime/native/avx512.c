/* Kernels for x86-64 with AVX-512 (F, BW, VL) and VNNI; vpopcntq is used where there is one. */
#include "internal.h"

#ifdef LRNETS_SIMULATE /* on a CPU without AVX-512: SIMDe computes the same in plain C, slowly */
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#else
#include <immintrin.h>
#endif

#define KERNELS_NAME "avx512"
#define KERNELS_TABLE lrn_avx512
#define TILE 8
#define TOGETHER 2
#define WIDTH 16
#define HAS_EXPAND
#define LOOKUP_GROUP 4
#define HAS_LOOKUP
#define ROW_BYTES 64
#define HAS_ROWS
#define WINOGRAD 1
#define HAS_SIGNS

static int supported(void) {
#ifdef LRNETS_SIMULATE
    return 1;
#endif
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

/* 8 pixels x 32 outputs in 16 registers: both multipliers are busy while sums are on their way, and a load of an input
 * serves twice. The compiler has to unroll early, or it puts arrays of registers into memory; and it must not know what k
 * is, or it counts up a pointer for each pixel. */
#define UNROLL _Pragma("GCC unroll 8")
#define HIDE(k) __asm__("" : "+r"(k))
#define INLINE static inline __attribute__((always_inline))

INLINE void meet_floats(const conv *c, const int count, const float *panel, int64_t other, const float *const *pixels,
                        float *const *sums) {
    __m512 sum[2][TILE];
    UNROLL for (int p = 0; p < TILE; p++) sum[0][p] = sum[1][p] = _mm512_setzero_ps();
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t run = 0; run < c->runs; run++) {
            const int64_t start = row * c->row_stride + run * c->run_stride;
            const float *from[TILE];
            UNROLL for (int p = 0; p < TILE; p++) from[p] = pixels[p] + start;
            for (int64_t k = 0; k < c->run; k++, panel += PANEL) {
                HIDE(k);
                const __m512 first = _mm512_load_ps(panel), second = count == 2 ? _mm512_load_ps(panel + other) : first;
                UNROLL for (int p = 0; p < TILE; p++) {
                    const __m512 x = _mm512_set1_ps(from[p][k]);
                    sum[0][p] = _mm512_fmadd_ps(x, first, sum[0][p]);
                    if (count == 2) sum[1][p] = _mm512_fmadd_ps(x, second, sum[1][p]);
                }
            }
        }
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int p = 0; p < TILE; p++) _mm512_storeu_ps(sums[i] + p * PANEL, sum[i][p]);
}

/* vpdpbusd adds four products to 32 bits without saturation, whatever the weights. */
INLINE void meet_bytes(const conv *c, const int count, const int8_t *panel, int64_t other, const uint8_t *const *pixels,
                       int32_t *const *sums) {
    __m512i sum[2][TILE];
    UNROLL for (int p = 0; p < TILE; p++) sum[0][p] = sum[1][p] = _mm512_setzero_si512();
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t run = 0; run < c->runs; run++) {
            const int64_t start = row * c->row_stride + run * c->run_stride;
            const uint8_t *from[TILE];
            UNROLL for (int p = 0; p < TILE; p++) from[p] = pixels[p] + start;
            for (int64_t k = 0; k < c->padded_run; k += QUAD, panel += QUAD * PANEL) {
                HIDE(k);
                const __m512i first = _mm512_load_si512((const void *)panel);
                const __m512i second = count == 2 ? _mm512_load_si512((const void *)(panel + other)) : first;
                UNROLL for (int p = 0; p < TILE; p++) {
                    int32_t quad;
                    __builtin_memcpy(&quad, from[p] + k, sizeof quad);
                    const __m512i x = _mm512_set1_epi32(quad);
                    sum[0][p] = _mm512_dpbusd_epi32(sum[0][p], x, first);
                    if (count == 2) sum[1][p] = _mm512_dpbusd_epi32(sum[1][p], x, second);
                }
            }
        }
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int p = 0; p < TILE; p++) _mm512_storeu_si512((void *)(sums[i] + p * PANEL), sum[i][p]);
}

#define OF_PANELS(name, meet, weight, input, number)                                                                          \
    static SEPARATE void name##_of_one(const conv *c, const weight *panel, const input *const *pixels, number *const *sums) { \
        meet(c, 1, panel, 0, pixels, sums);                                                                                   \
    }                                                                                                                         \
    static SEPARATE void name##_of_two(const conv *c, const weight *panel, int64_t other, const input *const *pixels,         \
                                       number *const *sums) {                                                                 \
        meet(c, 2, panel, other, pixels, sums);                                                                               \
    }                                                                                                                         \
    static void name##_of_panels(const conv *c, int count, const void *const *panels, const void *const *pixels,              \
                                 void *const *sums) {                                                                         \
        const weight *first = panels[0];                                                                                      \
        if (count == 2)                                                                                                       \
            name##_of_two(c, first, (const weight *)panels[1] - first, (const input *const *)pixels, (number *const *)sums);  \
        else                                                                                                                  \
            name##_of_one(c, first, (const input *const *)pixels, (number *const *)sums);                                     \
    }
OF_PANELS(floats, meet_floats, float, float, float)
OF_PANELS(bytes, meet_bytes, int8_t, uint8_t, int32_t)

/* A bit of each output's word is a mask. */
static void expand_block(const uint32_t *plus, const uint32_t *minus, float *panel) {
    const __m512i ups = _mm512_loadu_si512((const void *)plus), downs = _mm512_loadu_si512((const void *)minus);
    const __m512 one = _mm512_set1_ps(1.0f), less = _mm512_set1_ps(-1.0f);
    for (int i = 0; i < 32; i++, panel += PANEL) {
        const __m512i bit = _mm512_set1_epi32((int)(1u << i));
        const __m512 weights = _mm512_maskz_mov_ps(_mm512_test_epi32_mask(ups, bit), one);
        _mm512_store_ps(panel, _mm512_mask_mov_ps(weights, _mm512_test_epi32_mask(downs, bit), less));
    }
}

/* Table g holds, at place i, the sum of those inputs of group g that have a bit in i (bits 2), or that sum less the
 * others (bits 1). */
static void make_tables(const float *x, int64_t count, int64_t groups, int bits, float *tables) {
    for (int64_t g = 0; g < groups; g++) {
        __m512 sums = _mm512_setzero_ps();
        for (int i = 0; i < LOOKUP_GROUP && LOOKUP_GROUP * g + i < count; i++) {
            const __m512 here = _mm512_set1_ps(x[LOOKUP_GROUP * g + i]), less = _mm512_sub_ps(_mm512_setzero_ps(), here);
            static const uint16_t has[LOOKUP_GROUP] = {0xAAAA, 0xCCCC, 0xF0F0, 0xFF00};
            sums = _mm512_add_ps(sums, _mm512_mask_blend_ps(has[i], bits == 1 ? less : _mm512_setzero_ps(), here));
        }
        _mm512_store_ps(tables + 16 * g, sums);
    }
}

/* A word holds 8 indices of 4 bits; read from its byte j on, its lowest nibble is index 2 j. */
static SEPARATE void lookup_sums(const uint8_t *panel, int64_t blocks, int bits, const float *tables, float sums[PANEL]) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; b++, panel += 4 * PANEL * bits)
        for (int j = 0; j < 4; j++, tables += 32) {
            const __m512 first = _mm512_load_ps(tables), second = _mm512_load_ps(tables + 16);
            const __m512i plus = _mm512_loadu_si512((const void *)(panel + j));
            __m512 a = _mm512_permutexvar_ps(plus, first), c = _mm512_permutexvar_ps(_mm512_srli_epi32(plus, 4), second);
            if (bits == 2) {
                const __m512i minus = _mm512_loadu_si512((const void *)(panel + 4 * PANEL + j));
                a = _mm512_sub_ps(a, _mm512_permutexvar_ps(minus, first));
                c = _mm512_sub_ps(c, _mm512_permutexvar_ps(_mm512_srli_epi32(minus, 4), second));
            }
            even = _mm512_add_ps(even, a);
            odd = _mm512_add_ps(odd, c);
        }
    _mm512_storeu_ps(sums, _mm512_add_ps(even, odd));
}

INLINE void sum_rows(const uint8_t *rows, const uint8_t *x, int64_t blocks, const int bits, int32_t sums[ROWS]) {
    const __m512i mask = _mm512_set1_epi8((char)((1 << bits) - 1));
    __m512i total[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) total[r] = _mm512_setzero_si512();
    for (int64_t b = 0; b < blocks; b++, rows += ROWS * ROW_BYTES) {
        __m512i here[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) here[r] = _mm512_load_si512((const void *)(rows + r * ROW_BYTES));
        UNROLL for (int f = 0; f < 8 / bits; f++, x += ROW_BYTES) {
            const __m512i inputs = _mm512_loadu_si512((const void *)x);
            UNROLL for (int r = 0; r < ROWS; r++) {
                const __m512i fields = f == 0 ? here[r] : _mm512_srli_epi16(here[r], (unsigned)(bits * f));
                total[r] = _mm512_dpbusd_epi32(total[r], inputs, _mm512_and_si512(fields, mask));
            }
        }
    }
    for (int r = 0; r < ROWS; r++) {
        uint32_t parts[16], sum = 0; /* modulo 2^32, see run_rows */
        _mm512_storeu_si512((void *)parts, total[r]);
        for (int i = 0; i < 16; i++) sum += parts[i];
        sums[r] = (int32_t)sum;
    }
}

static SEPARATE void row_sums(const uint8_t *rows, const uint8_t *x, int64_t blocks, int bits, int32_t sums[ROWS]) {
    if (bits == 1)
        sum_rows(rows, x, blocks, 1, sums);
    else
        sum_rows(rows, x, blocks, 2, sums);
}

#include "signs_avx2.inc"

static inline int byte_of_signs(const float *x) {
    return _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), _mm256_setzero_ps(), _CMP_GE_OQ));
}

#ifdef LRNETS_SIMULATE
#define WITH_POPCOUNT
static int has_popcount(void) { return 1; }
#else
#define WITH_POPCOUNT __attribute__((target("avx512vpopcntdq")))
static int has_popcount(void) { return __builtin_cpu_supports("avx512vpopcntdq"); }
#endif

/* 8 outputs to a register, a word of each. */
WITH_POPCOUNT static SEPARATE void count_by_vpopcntq(const uint64_t *panel, const uint64_t *places, int64_t words, int tile,
                                                     int32_t counts[2][PANEL]) {
    const uint64_t *other = places + (tile == 2 ? words : 0);
    __m512i a0 = _mm512_setzero_si512(), a1 = a0, b0 = a0, b1 = a0;
    for (int64_t i = 0; i < words; i++, panel += PANEL) {
        const __m512i w0 = _mm512_load_si512((const void *)panel), w1 = _mm512_load_si512((const void *)(panel + 8));
        const __m512i x = _mm512_set1_epi64((int64_t)places[i]), y = _mm512_set1_epi64((int64_t)other[i]);
        a0 = _mm512_add_epi64(a0, _mm512_popcnt_epi64(_mm512_xor_si512(x, w0)));
        a1 = _mm512_add_epi64(a1, _mm512_popcnt_epi64(_mm512_xor_si512(x, w1)));
        b0 = _mm512_add_epi64(b0, _mm512_popcnt_epi64(_mm512_xor_si512(y, w0)));
        b1 = _mm512_add_epi64(b1, _mm512_popcnt_epi64(_mm512_xor_si512(y, w1)));
    }
    const __m512i sums[2][2] = {{a0, a1}, {b0, b1}};
    for (int p = 0; p < tile; p++)
        for (int i = 0; i < 2; i++) _mm256_storeu_si256((__m256i *)(counts[p] + 8 * i), _mm512_cvtepi64_epi32(sums[p][i]));
}

static inline void count_differing(const uint64_t *panel, const uint64_t *places, int64_t words, int tile, int32_t counts[2][PANEL]) {
    if (has_popcount())
        count_by_vpopcntq(panel, places, words, tile, counts);
    else
        count_by_nibbles(panel, places, words, tile, counts);
}

#include "kernels.inc"
