/* What a GPT-2 consists of besides matrix products: norms, the activation, and the attention of one
query, each with its derivative.

Queries, keys and values are stored feature after feature with the heads side by side, (D, H): every
loop then runs over heads, and none has to add up neighbours.
*/

#pragma once

#include "kernels.h"

/* ---- Norms and the activation ---- */

static void norm(const float *x, const float *weight, const float *bias, float epsilon,
                 int64_t rows, int64_t width, float *y, float *stats)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        float mean = sum_of(x, width) / (float)width;
        for (int64_t c = 0; c < width; c++) y[c] = x[c] - mean;
        float scale = 1.0f / sqrtf(dot(y, y, width) / (float)width + epsilon);
        for (int64_t c = 0; c < width; c++) y[c] = y[c] * scale * weight[c] + bias[c];
        stats[2 * r] = mean;
        stats[2 * r + 1] = scale;
    }
}

/* Adds to d_x; d is the gradient by the outputs, and is overwritten. */
static void norm_backward(const float *x, const float *stats, const float *weight, float *d,
                          int64_t rows, int64_t width, float *d_x, float *weight_grad,
                          float *bias_grad)
{
    float standard[width];
    for (int64_t r = 0; r < rows; r++, x += width, d += width, d_x += width) {
        float mean = stats[2 * r], scale = stats[2 * r + 1];
        for (int64_t c = 0; c < width; c++) {
            standard[c] = (x[c] - mean) * scale;
            weight_grad[c] += d[c] * standard[c];
            bias_grad[c] += d[c];
            d[c] *= weight[c];
        }
        float level = sum_of(d, width) / (float)width;
        float slope = dot(d, standard, width) / (float)width;
        for (int64_t c = 0; c < width; c++) d_x[c] += scale * (d[c] - level - standard[c] * slope);
    }
}

#define GELU_A 0.7978845608f /* sqrt(2 / pi) */
#define GELU_B 0.044715f

static void gelu(const float *x, int64_t n, float *tanhs, float *y)
{
    for (int64_t i = 0; i < n; i++) tanhs[i] = GELU_A * (x[i] + GELU_B * x[i] * x[i] * x[i]);
    activate(tanhs, n, TANH);
    for (int64_t i = 0; i < n; i++) y[i] = 0.5f * x[i] * (1.0f + tanhs[i]);
}

static void gelu_backward(const float *x, const float *tanhs, int64_t n, float *d)
{
    for (int64_t i = 0; i < n; i++) {
        float inner = GELU_A * (1.0f + 3.0f * GELU_B * x[i] * x[i]);
        d[i] *= 0.5f * (1.0f + tanhs[i]) + 0.5f * x[i] * (1.0f - tanhs[i] * tanhs[i]) * inner;
    }
}

/* ---- Attention ---- */

/* Turns the pairs of features of a row; direction -1 turns back. */
static void turn(float *x, const float *turns, int64_t heads, int64_t head_size, float direction)
{
    for (int64_t pair = 0; pair < head_size / 2; pair++) {
        float c = turns[2 * pair], s = direction * turns[2 * pair + 1];
        float *a = x + 2 * pair * heads, *b = a + heads;
        for (int64_t h = 0; h < heads; h++) {
            float first = a[h];
            a[h] = first * c - b[h] * s;
            b[h] = first * s + b[h] * c;
        }
    }
}

/* First of the steps that a step sees: neither too long ago nor of another segment. */
static int64_t first_seen(const int64_t *segments, int64_t step, int64_t reach)
{
    int64_t first = step;
    if (segments[step] < 0) return step; /* padding sees itself alone */
    while (first > 0 && step - first + 1 < reach && segments[first - 1] == segments[step]) first--;
    return first;
}

static inline __attribute__((always_inline)) void attend(
    const float *q, const float *keys, const float *values, int64_t count, int64_t heads,
    int64_t head_size, float *probs, float *read)
{
    int64_t width = heads * head_size;
    float scale = 1.0f / sqrtf((float)head_size), top[heads], total[heads];
    for (int64_t j = 0; j < count; j++) {
        const float *k = keys + j * width;
        float *p = probs + j * heads;
        for (int64_t h = 0; h < heads; h++) p[h] = 0.0f;
        for (int64_t d = 0; d < head_size; d++)
            for (int64_t h = 0; h < heads; h++) p[h] += q[d * heads + h] * k[d * heads + h];
        for (int64_t h = 0; h < heads; h++) {
            p[h] *= scale;
            top[h] = j && top[h] > p[h] ? top[h] : p[h];
        }
    }
    for (int64_t j = 0; j < count; j++)
        for (int64_t h = 0; h < heads; h++) probs[j * heads + h] -= top[h];
    exp_row(probs, count * heads);
    for (int64_t h = 0; h < heads; h++) total[h] = 0.0f;
    for (int64_t j = 0; j < count; j++)
        for (int64_t h = 0; h < heads; h++) total[h] += probs[j * heads + h];
    for (int64_t h = 0; h < heads; h++) total[h] = 1.0f / total[h];
    memset(read, 0, width * sizeof(float));
    for (int64_t j = 0; j < count; j++) {
        float *p = probs + j * heads;
        const float *v = values + j * width;
        for (int64_t h = 0; h < heads; h++) p[h] *= total[h];
        for (int64_t d = 0; d < head_size; d++)
            for (int64_t h = 0; h < heads; h++) read[d * heads + h] += p[h] * v[d * heads + h];
    }
}

static inline __attribute__((always_inline)) void attend_backward(
    const float *q, const float *keys, const float *values, const float *probs, const float *d_read,
    int64_t count, int64_t heads, int64_t head_size, float *d_q, float *d_keys, float *d_values)
{
    int64_t width = heads * head_size;
    float scale = 1.0f / sqrtf((float)head_size), slope[count * heads], level[heads];
    for (int64_t h = 0; h < heads; h++) level[h] = 0.0f;
    for (int64_t j = 0; j < count; j++) {
        const float *p = probs + j * heads, *v = values + j * width;
        float *s = slope + j * heads, *d_v = d_values + j * width;
        for (int64_t h = 0; h < heads; h++) s[h] = 0.0f;
        for (int64_t d = 0; d < head_size; d++)
            for (int64_t h = 0; h < heads; h++) {
                s[h] += d_read[d * heads + h] * v[d * heads + h];
                d_v[d * heads + h] += p[h] * d_read[d * heads + h];
            }
        for (int64_t h = 0; h < heads; h++) level[h] += p[h] * s[h];
    }
    memset(d_q, 0, width * sizeof(float));
    for (int64_t j = 0; j < count; j++) {
        const float *p = probs + j * heads, *k = keys + j * width;
        float *s = slope + j * heads, *d_k = d_keys + j * width;
        for (int64_t h = 0; h < heads; h++) s[h] = p[h] * (s[h] - level[h]) * scale;
        for (int64_t d = 0; d < head_size; d++)
            for (int64_t h = 0; h < heads; h++) {
                d_q[d * heads + h] += s[h] * k[d * heads + h];
                d_k[d * heads + h] += s[h] * q[d * heads + h];
            }
    }
}
