/* What the nets of this folder share: parameters, matrix products, exp and tanh, sums.

Rows of numbers are padded to whole vectors where a product reads or writes them. Every matrix
product is one kernel: C[r][:] += sum over k of A(r, k) * B[k][:].
*/

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#define NUM_VECTORS 4 /* a block of C is 6 rows of 4 vectors: 24 of 32 registers */
#else
#define LANES 8
#define NUM_VECTORS 2 /* 12 of 16 registers */
#endif
#define NUM_ROWS 6
#define TILE 128 /* rows that pass through the net together: their activations stay in the cache */

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4)));

enum { NO_ACTIVATION, TANH, RELU };

/* The parameters of a net, their gradient, and Adam's state. */
typedef struct {
    int64_t num_parameters;
    float *vector, *grad; /* (P,) each */
    float *exp_avg, *exp_avg_sq;
    double lr, beta1, beta2, epsilon, grad_clip; /* grad_clip: infinite for none */
    int64_t num_steps;                           /* of Adam so far */
} Net;

static inline int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* ---- Matrix products ---- */

static inline __attribute__((always_inline)) void block(
    int num_rows, int num_vectors, float *c, int64_t ldc, const float *a, int64_t row_stride,
    int64_t k_stride, const float *b, int64_t ldb, int64_t depth)
{
    vec sum[NUM_ROWS][NUM_VECTORS];
    for (int r = 0; r < num_rows; r++)
        for (int v = 0; v < num_vectors; v++) sum[r][v] = *(vec *)(c + r * ldc + v * LANES);
    for (int64_t k = 0; k < depth; k++) {
        vec row[NUM_VECTORS];
        for (int v = 0; v < num_vectors; v++) row[v] = *(const vec *)(b + k * ldb + v * LANES);
        for (int r = 0; r < num_rows; r++) {
            float factor = a[r * row_stride + k * k_stride];
            for (int v = 0; v < num_vectors; v++) sum[r][v] += factor * row[v];
        }
    }
    for (int r = 0; r < num_rows; r++)
        for (int v = 0; v < num_vectors; v++) *(vec *)(c + r * ldc + v * LANES) = sum[r][v];
}

static inline void strip(int64_t rows, int num_vectors, float *c, int64_t ldc, const float *a,
                  int64_t row_stride, int64_t k_stride, const float *b, int64_t ldb, int64_t depth)
{
    /* Constant sizes, so that the compiler keeps the sums in registers. */
#define BLOCK(n, w)                                                                             \
    block(n, w, c + r * ldc, ldc, a + r * row_stride, row_stride, k_stride, b, ldb, depth), r += n
#define STRIP(w)                                        \
    for (int64_t r = 0; r < rows;) {                    \
        if (rows - r >= NUM_ROWS) BLOCK(NUM_ROWS, w);   \
        else if (rows - r >= 2) BLOCK(2, w);            \
        else BLOCK(1, w);                               \
    }
    if (num_vectors == NUM_VECTORS) STRIP(NUM_VECTORS)
    else STRIP(1)
}

/* C (rows, width) += A (rows, depth) B (depth, width); width is padded. */
static inline void add_product(int64_t rows, int64_t width, int64_t depth, float *c, int64_t ldc,
                        const float *a, int64_t row_stride, int64_t k_stride, const float *b,
                        int64_t ldb)
{
    int64_t j = 0;
    for (; j + NUM_VECTORS * LANES <= width; j += NUM_VECTORS * LANES)
        strip(rows, NUM_VECTORS, c + j, ldc, a, row_stride, k_stride, b + j, ldb, depth);
    for (; j < width; j += LANES)
        strip(rows, 1, c + j, ldc, a, row_stride, k_stride, b + j, ldb, depth);
}

/* ---- exp and tanh ---- */

/* exp(x) = 2^k exp(r) with |r| <= ln(2) / 2, to a few units in the last place: returns
   exp(r) - 1, and 2^k in scale. */
static inline float exp_parts(float x, float *scale)
{
    x = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
    float k = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23 rounds to an integer */
    float r = x - k * 0.693359375f + k * 2.12194440e-4f;     /* ln(2) in two parts */
    float q = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
    q = q * r + 1.0f / 120.0f;
    q = q * r + 1.0f / 24.0f;
    q = q * r + 1.0f / 6.0f;
    q = q * r + 0.5f;
    union { int32_t bits; float value; } power = {((int32_t)(k == k ? k : 0.0f) + 127) << 23};
    *scale = power.value;
    return q * r * r + r;
}

static inline void exp_row(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float scale, q = exp_parts(x[i], &scale);
        x[i] = scale * q + scale;
    }
}

static inline void activate(float *x, int64_t n, int64_t activation)
{
    if (activation == TANH)
        for (int64_t i = 0; i < n; i++) {
            float scale, q = exp_parts(2.0f * x[i], &scale);
            float t = scale * q + (scale - 1.0f); /* exp(2 x) - 1, which is exact near zero, too */
            x[i] = t / (t + 2.0f);
        }
    else if (activation == RELU)
        for (int64_t i = 0; i < n; i++) x[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

/* ---- Sums ---- */

static inline float total(vec sums)
{
    union { vec all; float each[LANES]; } s = {sums};
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) s.each[i] += s.each[i + width];
    return s.each[0];
}

/* Of a padded row. */
static inline float sum_of(const float *x, int64_t n)
{
    vec sums = {0};
    for (int64_t i = 0; i < n; i += LANES) sums += *(const vec *)(x + i);
    return total(sums);
}

static inline float dot(const float *x, const float *y, int64_t n)
{
    vec sums = {0};
    for (int64_t i = 0; i < n; i += LANES) sums += *(const vec *)(x + i) * *(const vec *)(y + i);
    return total(sums);
}

static inline void add(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}
