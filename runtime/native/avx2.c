/* Kernels for x86-64 with AVX2 and FMA. */
#include "internal.h"

#include <immintrin.h>

#define KERNELS_NAME "avx2"
#define KERNELS_TABLE lrn_avx2
#define TILE 6
#define LOOKUP_GROUP 3
#define HAS_LOOKUP
#define ROW_BYTES 32
#define HAS_ROWS
#define WINOGRAD 1
#define HAS_SIGNS

static int supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* 6 pixels x 16 outputs in 12 registers; a broadcast input meets 2 loads of weights. The registers have names because
 * the compiler puts arrays of them into memory. */
#define FOR_ALL(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)

static SEPARATE void sums_of_floats(const conv *c, const float *panel, const float *const *pixels, float sums[TILE][PANEL]) {
#define CLEAR(p) __m256 low##p = _mm256_setzero_ps(), high##p = _mm256_setzero_ps();
#define POINT(p) const float *x##p = pixels[p] + start;
#define MEET(p)                                                  \
    {                                                            \
        const __m256 x = _mm256_broadcast_ss(x##p + k);          \
        low##p = _mm256_fmadd_ps(x, a, low##p);                  \
        high##p = _mm256_fmadd_ps(x, b, high##p);                \
    }
#define KEEP(p)                                                  \
    _mm256_storeu_ps(sums[p], low##p);                           \
    _mm256_storeu_ps(sums[p] + 8, high##p);
    FOR_ALL(CLEAR)
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t run = 0; run < c->runs; run++) {
            const int64_t start = row * c->row_stride + run * c->run_stride;
            FOR_ALL(POINT)
            for (int64_t k = 0; k < c->run; k++, panel += PANEL) {
                const __m256 a = _mm256_load_ps(panel), b = _mm256_load_ps(panel + 8);
                FOR_ALL(MEET)
            }
        }
    FOR_ALL(KEEP)
#undef CLEAR
#undef POINT
#undef MEET
#undef KEEP
}

static inline __m256i four_bytes(const uint8_t *x) {
    int32_t quad;
    __builtin_memcpy(&quad, x, sizeof quad);
    return _mm256_set1_epi32(quad);
}

static inline void add_pairs(int32_t *to, __m256i pairs) {
    const __m256i wide = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    _mm256_storeu_si256((__m256i *)to, _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)to), wide));
}

/* Weights are small, so products of pairs are added up in 16 bits, and go into 32 before they could overflow. */
static SEPARATE void sums_of_bytes(const conv *c, const int8_t *panel, const uint8_t *const *pixels, int32_t sums[TILE][PANEL]) {
#define CLEAR(p) low##p = high##p = _mm256_setzero_si256();
#define DECLARE(p) __m256i low##p, high##p;
#define POINT(p) const uint8_t *x##p = pixels[p] + start;
#define MEET(p)                                                              \
    {                                                                        \
        const __m256i x = four_bytes(x##p + k);                              \
        low##p = _mm256_add_epi16(low##p, _mm256_maddubs_epi16(x, a));       \
        high##p = _mm256_add_epi16(high##p, _mm256_maddubs_epi16(x, b));     \
    }
#define FLUSH(p)                     \
    add_pairs(sums[p], low##p);      \
    add_pairs(sums[p] + 8, high##p);
    FOR_ALL(DECLARE)
    FOR_ALL(CLEAR)
    int left = c->flush;
    __builtin_memset(sums, 0, sizeof(int32_t) * TILE * PANEL);
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t run = 0; run < c->runs; run++) {
            const int64_t start = row * c->row_stride + run * c->run_stride;
            FOR_ALL(POINT)
            for (int64_t k = 0; k < c->padded_run;) {
                int64_t quads = (c->padded_run - k) / QUAD;
                quads = quads < left ? quads : left;
                left -= (int)quads;
                for (const int64_t end = k + quads * QUAD; k < end; k += QUAD, panel += QUAD * PANEL) {
                    const __m256i a = _mm256_load_si256((const __m256i *)panel);
                    const __m256i b = _mm256_load_si256((const __m256i *)(panel + 32));
                    FOR_ALL(MEET)
                }
                if (left == 0) {
                    FOR_ALL(FLUSH)
                    FOR_ALL(CLEAR)
                    left = c->flush;
                }
            }
        }
    FOR_ALL(FLUSH)
#undef CLEAR
#undef DECLARE
#undef POINT
#undef MEET
#undef FLUSH
}

/* Any int8 weights: products in 16 bits would not fit, so both sides are widened first. */
static void sums_of_bytes_wide(const conv *c, const int8_t *panel, const uint8_t *const *pixels, int32_t sums[TILE][PANEL]) {
    for (int p = 0; p < TILE; p++) {
        const int8_t *weights = panel;
        __m256i pairs[4];
        for (int i = 0; i < 4; i++) pairs[i] = _mm256_setzero_si256();
        for (int64_t row = 0; row < c->rows; row++)
            for (int64_t run = 0; run < c->runs; run++) {
                const uint8_t *x = pixels[p] + row * c->row_stride + run * c->run_stride;
                for (int64_t k = 0; k < c->padded_run; k += QUAD, weights += QUAD * PANEL) {
                    const __m256i wide = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(four_bytes(x + k)));
                    for (int i = 0; i < 4; i++) { /* 4 outputs x 4 inputs */
                        const __m256i w = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(weights + 16 * i)));
                        pairs[i] = _mm256_add_epi32(pairs[i], _mm256_madd_epi16(wide, w));
                    }
                }
            }
        int32_t halves[32];
        for (int i = 0; i < 4; i++) _mm256_storeu_si256((__m256i *)(halves + 8 * i), pairs[i]);
        for (int o = 0; o < PANEL; o++) sums[p][o] = halves[2 * o] + halves[2 * o + 1];
    }
}

/* Table g holds, at place i, the sum of those inputs of group g that have a bit in i (bits 2), or that sum less the
 * others (bits 1). */
static inline __m256 table_of(float x0, float x1, float x2, int bits) {
    const __m256 first = _mm256_set1_ps(x0), second = _mm256_set1_ps(x1), third = _mm256_set1_ps(x2);
    const __m256 none = _mm256_setzero_ps();
    const __m256 a = _mm256_blend_ps(bits == 1 ? _mm256_sub_ps(none, first) : none, first, 0xAA);
    const __m256 b = _mm256_blend_ps(bits == 1 ? _mm256_sub_ps(none, second) : none, second, 0xCC);
    const __m256 c = _mm256_blend_ps(bits == 1 ? _mm256_sub_ps(none, third) : none, third, 0xF0);
    return _mm256_add_ps(_mm256_add_ps(a, b), c);
}

static void make_tables(const float *x, int64_t count, int64_t groups, int bits, float *tables) {
    int64_t g = 0;
    for (; g < groups && LOOKUP_GROUP * (g + 1) <= count; g++, x += LOOKUP_GROUP)
        _mm256_store_ps(tables + 8 * g, table_of(x[0], x[1], x[2], bits));
    const int64_t left = count - LOOKUP_GROUP * g;
    for (; g < groups; g++) { /* past the end: zeros */
        const int here = LOOKUP_GROUP * g < count;
        _mm256_store_ps(tables + 8 * g, table_of(here ? x[0] : 0, here && left > 1 ? x[1] : 0, 0, bits));
    }
}

static inline __m256i words_at(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }

/* A word holds 8 indices of 3 bits in its nibbles; read from its byte j on, its lowest nibble is index 2 j. vpermps looks
 * at the lowest 3 bits only, so nothing is masked. Sums are taken as 1 * a + b: multipliers are idle here, adders not. */
#define TABLES(j) const __m256 first = _mm256_load_ps(tables + 16 * (j)), second = _mm256_load_ps(tables + 16 * (j) + 8);
#define LOOK(table, index) _mm256_permutevar8x32_ps(table, index)
#define LATER(index) _mm256_srli_epi32(index, 4)
#define ADD(sum, found) sum = _mm256_fmadd_ps(found, one, sum)

static SEPARATE void look_up_binary(const uint8_t *panel, int64_t blocks, const float *tables, float *sums) {
    const __m256 one = _mm256_set1_ps(1);
    __m256 a0 = _mm256_setzero_ps(), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0, d1 = a0;
    for (int64_t b = 0; b < 2 * blocks; b++, panel += b % 2 ? 2 : 4 * PANEL - 2, tables += 32) {
        { /* bytes 0 and 1 of the words, or 2 and 3; eight sums, or each would wait for the one before */
            TABLES(0)
            const __m256i plus0 = words_at(panel), plus1 = words_at(panel + 32);
            ADD(a0, LOOK(first, plus0)), ADD(a1, LOOK(first, plus1));
            ADD(b0, LOOK(second, LATER(plus0))), ADD(b1, LOOK(second, LATER(plus1)));
        }
        {
            TABLES(1)
            const __m256i plus0 = words_at(panel + 1), plus1 = words_at(panel + 33);
            ADD(c0, LOOK(first, plus0)), ADD(c1, LOOK(first, plus1));
            ADD(d0, LOOK(second, LATER(plus0))), ADD(d1, LOOK(second, LATER(plus1)));
        }
    }
    _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_add_ps(a0, b0), _mm256_add_ps(c0, d0)));
    _mm256_storeu_ps(sums + 8, _mm256_add_ps(_mm256_add_ps(a1, b1), _mm256_add_ps(c1, d1)));
}

static SEPARATE void look_up_ternary(const uint8_t *panel, int64_t blocks, const float *tables, float *sums) {
    const __m256 one = _mm256_set1_ps(1);
    __m256 even0 = _mm256_setzero_ps(), even1 = even0, odd0 = even0, odd1 = even0;
    for (int64_t b = 0; b < blocks; b++, panel += 8 * PANEL, tables += 64)
#pragma GCC unroll 1 /* unrolled, its loads are all put first, and spill */
        for (int j = 0; j < 4; j++) {
            TABLES(j)
            const __m256i plus0 = words_at(panel + j), plus1 = words_at(panel + 32 + j);
            const __m256i minus0 = words_at(panel + 64 + j), minus1 = words_at(panel + 96 + j);
            ADD(even0, _mm256_sub_ps(LOOK(first, plus0), LOOK(first, minus0)));
            ADD(even1, _mm256_sub_ps(LOOK(first, plus1), LOOK(first, minus1)));
            ADD(odd0, _mm256_sub_ps(LOOK(second, LATER(plus0)), LOOK(second, LATER(minus0))));
            ADD(odd1, _mm256_sub_ps(LOOK(second, LATER(plus1)), LOOK(second, LATER(minus1))));
        }
    _mm256_storeu_ps(sums, _mm256_add_ps(even0, odd0));
    _mm256_storeu_ps(sums + 8, _mm256_add_ps(even1, odd1));
}
#undef TABLES
#undef LOOK
#undef LATER
#undef ADD

static void lookup_sums(const uint8_t *panel, int64_t blocks, int bits, const float *tables, float sums[PANEL]) {
    if (bits == 2)
        look_up_ternary(panel, blocks, tables, sums);
    else
        look_up_binary(panel, blocks, tables, sums);
}

/* A product of two pairs is at most 2 * 255 * 2: 32 of them fit 16 bits, 64 with fields of 1 bit. */
static inline __attribute__((always_inline)) void sum_rows(const uint8_t *rows, const uint8_t *x, int64_t blocks, const int bits, int32_t sums[ROWS]) {
    const __m256i mask = _mm256_set1_epi8((char)((1 << bits) - 1)), ones = _mm256_set1_epi16(1);
    __m256i total0 = _mm256_setzero_si256(), total1 = total0, total2 = total0, total3 = total0;
    while (blocks) {
        __m256i sum0 = _mm256_setzero_si256(), sum1 = sum0, sum2 = sum0, sum3 = sum0;
        for (int b = blocks < 8 ? (int)blocks : 8; b; b--, blocks--, rows += ROWS * ROW_BYTES) {
#pragma GCC unroll 1
            for (int half = 0; half < 8 / bits; half += 4, x += 4 * ROW_BYTES) {
                const __m256i x0 = words_at(x), x1 = words_at(x + ROW_BYTES), x2 = words_at(x + 2 * ROW_BYTES);
                const __m256i x3 = words_at(x + 3 * ROW_BYTES);
#define FIELD(f) _mm256_and_si256(_mm256_srli_epi16(codes, bits * f), mask)
#define MEET(r)                                                                                                \
    {                                                                                                          \
        __m256i codes = _mm256_load_si256((const __m256i *)rows + r);                                          \
        if (bits == 1 && half) codes = _mm256_srli_epi16(codes, 4);                                            \
        sum##r = _mm256_add_epi16(sum##r, _mm256_maddubs_epi16(x0, _mm256_and_si256(codes, mask)));             \
        sum##r = _mm256_add_epi16(sum##r, _mm256_maddubs_epi16(x1, FIELD(1)));                                  \
        sum##r = _mm256_add_epi16(sum##r, _mm256_maddubs_epi16(x2, FIELD(2)));                                  \
        sum##r = _mm256_add_epi16(sum##r, _mm256_maddubs_epi16(x3, FIELD(3)));                                  \
    }
                MEET(0) MEET(1) MEET(2) MEET(3)
#undef MEET
#undef FIELD
            }
        }
        total0 = _mm256_add_epi32(total0, _mm256_madd_epi16(sum0, ones));
        total1 = _mm256_add_epi32(total1, _mm256_madd_epi16(sum1, ones));
        total2 = _mm256_add_epi32(total2, _mm256_madd_epi16(sum2, ones));
        total3 = _mm256_add_epi32(total3, _mm256_madd_epi16(sum3, ones));
    }
    const __m256i pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(total0, total1), _mm256_hadd_epi32(total2, total3));
    _mm_storeu_si128((__m128i *)sums, _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
}

static SEPARATE void row_sums(const uint8_t *rows, const uint8_t *x, int64_t blocks, int bits, int32_t sums[ROWS]) {
    if (bits == 2)
        sum_rows(rows, x, blocks, 2, sums);
    else
        sum_rows(rows, x, blocks, 1, sums);
}

#include "signs_avx2.inc"

static inline int byte_of_signs(const float *x) {
    return _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), _mm256_setzero_ps(), _CMP_GE_OQ));
}

#define count_differing count_by_nibbles

#include "kernels.inc"
