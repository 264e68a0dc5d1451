/* From a net's outputs for a step to the loss and the gradient by them: squared error for a critic,
PPO's clipped surrogate for an actor.
*/

#pragma once

#include "kernels.h"

enum { SQUARED_ERROR, CATEGORICAL, GAUSSIAN };
/* A logit below is that of an action that was not allowed. */
#define IS_MASKED -1e29f

/* What is known of each step. */
typedef struct {
    int64_t kind, num_outputs; /* of the net */
    const uint8_t *mask; /* whether a step counts; none: all do */
    /* Of an actor. */
    const void *actions; /* int64, or A floats */
    const float *action_logp, *dist_inputs, *advantages;
    int64_t log_std; /* where it begins in the vector of parameters */
    double log_std_min, log_std_max;
    double clip, entropy_coeff, kl_coeff;
    /* Of a critic. */
    const float *targets, *outputs;
    double vf_clip; /* infinite for none */
} Batch;

typedef struct {
    const Batch *batch;
    float weight; /* 1 / number of steps that count */
    float *log_std, *inverse_std, *log_std_grad; /* (A,) each */
} Minibatch;

/* The minibatch of these rows of a batch, which have so many steps each; room for 3 outputs. */
static inline Minibatch open_minibatch(const Batch *b, const Net *net, const int64_t *rows,
                                int64_t num_rows, int64_t steps, float *room)
{
    int64_t n = b->num_outputs, count = b->mask ? 0 : num_rows * steps;
    for (int64_t r = 0; b->mask && r < num_rows; r++)
        for (int64_t i = 0; i < steps; i++) count += b->mask[rows[r] * steps + i];
    Minibatch m = {b, 1.0f / (float)(count ? count : 1), room, room + n, room + 2 * n};
    for (int64_t k = 0; b->kind == GAUSSIAN && k < n; k++) {
        float raw = net->vector[b->log_std + k];
        float low = (float)b->log_std_min, high = (float)b->log_std_max;
        m.log_std[k] = raw < low ? low : raw > high ? high : raw; /* NaN stays NaN */
        m.inverse_std[k] = expf(-m.log_std[k]);
        m.log_std_grad[k] = 0.0f;
    }
    return m;
}

static inline void close_minibatch(const Minibatch *m, const Net *net)
{
    const Batch *b = m->batch;
    if (b->kind == GAUSSIAN)
        memcpy(net->grad + b->log_std, m->log_std_grad, b->num_outputs * sizeof(float));
}

/* At a bound, a log deviation follows only a gradient that leads back inside. */
static inline void keep_inside(const Net *net, const Batch *b)
{
    for (int64_t k = 0; b->kind == GAUSSIAN && k < b->num_outputs; k++) {
        float raw = net->vector[b->log_std + k], *grad = net->grad + b->log_std + k;
        int outward = (raw >= (float)b->log_std_max && *grad < 0.0f) ||
                      (raw <= (float)b->log_std_min && *grad > 0.0f);
        if (outward) *grad = 0.0f;
    }
}

static double squared_error(const Minibatch *m, int64_t at, const float *out, float *d)
{
    const Batch *b = m->batch;
    float error = out[0] - b->targets[at], slope = error, move = out[0] - b->outputs[at];
    double loss = (double)error * error;
    if (fabsf(move) > (float)b->vf_clip) {
        float near = b->outputs[at] + copysignf((float)b->vf_clip, move) - b->targets[at];
        if ((double)near * near > loss) {
            loss = (double)near * near;
            slope = 0.0f;
        }
    }
    d[0] = 2.0f * slope * m->weight;
    return loss;
}

/* The surrogate's loss, and its derivative by the action's log-probability. */
static double surrogate(const Batch *b, int64_t row, float log_prob, float *slope)
{
    float ratio = expf(log_prob - b->action_logp[row]), advantage = b->advantages[row];
    float low = 1.0f - (float)b->clip, high = 1.0f + (float)b->clip;
    float clipped = ratio < low ? low : ratio > high ? high : ratio;
    int is_clipped = clipped != ratio && advantage * clipped < advantage * ratio;
    *slope = is_clipped ? 0.0f : -advantage * ratio;
    return -(double)advantage * (is_clipped ? clipped : ratio);
}

static double categorical(const Minibatch *m, int64_t row, const float *out, float *d)
{
    const Batch *b = m->batch;
    int64_t n = b->num_outputs;
    int64_t action = ((const int64_t *)b->actions)[row], width = padded(n);
    const float *old = b->dist_inputs + row * n;
    float logp[width], p[width], top = -INFINITY, sum = 0.0f, slope, entropy = 0.0f;
    for (int64_t k = 0; k < n; k++) top = old[k] > IS_MASKED && out[k] > top ? out[k] : top;
    for (int64_t k = 0; k < width; k++) p[k] = k < n ? out[k] - top : -100.0f;
    memcpy(logp, p, width * sizeof(float));
    exp_row(p, width);
    for (int64_t k = 0; k < n; k++) {
        if (old[k] <= IS_MASKED) p[k] = logp[k] = 0.0f; /* counts nowhere */
        sum += p[k];
    }
    float log_sum = logf(sum), scale = 1.0f / sum;
    for (int64_t k = 0; k < n; k++) {
        logp[k] -= log_sum;
        p[k] *= scale;
    }
    double loss = surrogate(b, row, logp[action], &slope);
    for (int64_t k = 0; k < n; k++) d[k] = -slope * p[k];
    d[action] += slope;
    if (b->entropy_coeff != 0.0) {
        float c = (float)b->entropy_coeff;
        for (int64_t k = 0; k < n; k++) entropy -= p[k] * logp[k];
        for (int64_t k = 0; k < n; k++) d[k] += c * p[k] * (logp[k] + entropy);
        loss -= c * entropy;
    }
    if (b->kl_coeff != 0.0) {
        float c = (float)b->kl_coeff, old_top = old[0], old_total = 0.0f, q[width];
        for (int64_t k = 1; k < n; k++) old_top = old[k] > old_top ? old[k] : old_top;
        for (int64_t k = 0; k < width; k++)
            q[k] = k < n && old[k] > IS_MASKED ? old[k] - old_top : -100.0f;
        exp_row(q, width);
        for (int64_t k = 0; k < n; k++) old_total += q[k];
        float old_log = old_top + logf(old_total);
        for (int64_t k = 0; k < n; k++) {
            if (old[k] <= IS_MASKED) continue;
            float prob = q[k] / old_total;
            d[k] += c * (p[k] - prob);
            loss += c * prob * (old[k] - old_log - logp[k]);
        }
    }
    for (int64_t k = 0; k < n; k++) d[k] *= m->weight;
    return loss;
}

static double gaussian(const Minibatch *m, int64_t row, const float *out, float *d)
{
    const Batch *b = m->batch;
    int64_t n = b->num_outputs;
    const float *log_std = m->log_std, *inverse_std = m->inverse_std;
    const float *actions = (const float *)b->actions + row * n, *old = b->dist_inputs + row * 2 * n;
    float z[n], log_prob = 0.0f, slope;
    for (int64_t k = 0; k < n; k++) {
        z[k] = (actions[k] - out[k]) * inverse_std[k];
        log_prob += -0.5f * z[k] * z[k] - log_std[k] - 0.918938533f;
    }
    double loss = surrogate(b, row, log_prob, &slope);
    for (int64_t k = 0; k < n; k++) {
        float by_log_std = slope * (z[k] * z[k] - 1.0f) - (float)b->entropy_coeff;
        d[k] = slope * z[k] * inverse_std[k];
        loss -= b->entropy_coeff * (log_std[k] + 1.418938533f);
        if (b->kl_coeff != 0.0) {
            float c = (float)b->kl_coeff, shift = (out[k] - old[k]) * inverse_std[k];
            float ratio = expf(2.0f * (old[n + k] - log_std[k]));
            d[k] += c * shift * inverse_std[k];
            by_log_std += c * (1.0f - ratio - shift * shift);
            loss += c * (log_std[k] - old[n + k] + 0.5f * (ratio + shift * shift - 1.0f));
        }
        d[k] *= m->weight;
        m->log_std_grad[k] += by_log_std * m->weight;
    }
    return loss;
}

/* Loss of a step; d is its gradient, all zero before. */
static inline double loss_of(const Minibatch *m, int64_t at, const float *out, float *d)
{
    const Batch *b = m->batch;
    if (b->mask && !b->mask[at]) return 0.0;
    if (b->kind == SQUARED_ERROR) return squared_error(m, at, out, d);
    return b->kind == CATEGORICAL ? categorical(m, at, out, d) : gaussian(m, at, out, d);
}
