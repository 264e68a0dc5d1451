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
    int64_t num_choices; /* of a categorical actor: how many choices, of so many logits each */
    const int64_t *sizes;
    const uint8_t *mask; /* whether a step counts; none: all do */
    /* Of an actor. */
    const void *actions; /* int64 for each choice, or A floats */
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

/* The log-probabilities of a choice, from logits less their largest, in logp, and exponentials of
   these, in p, which become probabilities. */
static void normalise(float *logp, float *p, const float *old, int64_t n)
{
    float sum = 0.0f;
    for (int64_t k = 0; k < n; k++) {
        if (old[k] <= IS_MASKED) p[k] = logp[k] = 0.0f; /* counts nowhere */
        sum += p[k];
    }
    float log_sum = logf(sum), scale = 1.0f / sum;
    for (int64_t k = 0; k < n; k++) {
        logp[k] -= log_sum;
        p[k] *= scale;
    }
}

/* x = logits less the largest of the choice that is allowed; -100 beside the choices. */
static void less_largest(const Batch *b, const float *logits, const float *old, float *x)
{
    for (int64_t c = 0, first = 0; c < b->num_choices; first += b->sizes[c++]) {
        float top = -INFINITY;
        int64_t end = first + b->sizes[c];
        for (int64_t k = first; k < end; k++)
            top = old[k] > IS_MASKED && logits[k] > top ? logits[k] : top;
        for (int64_t k = first; k < end; k++) x[k] = logits[k] - top;
    }
    for (int64_t k = b->num_outputs; k < padded(b->num_outputs); k++) x[k] = -100.0f;
}

/* Adds the entropy bonus of a choice to its gradient; returns its loss. */
static double entropy_bonus(float c, const float *logp, const float *p, float *d, int64_t n)
{
    float entropy = 0.0f;
    for (int64_t k = 0; k < n; k++) entropy -= p[k] * logp[k];
    for (int64_t k = 0; k < n; k++) d[k] += c * p[k] * (logp[k] + entropy);
    return -(double)c * entropy;
}

/* Adds the KL penalty of a choice to its gradient, q and old_logp being those that sampled. */
static double kl_penalty(float c, const float *logp, const float *p, const float *old_logp,
                         const float *q, float *d, int64_t n)
{
    double loss = 0.0;
    for (int64_t k = 0; k < n; k++) {
        d[k] += c * (p[k] - q[k]);
        loss += c * q[k] * (old_logp[k] - logp[k]);
    }
    return loss;
}

/* One choice, or several that are drawn apart. */
static double categorical(const Minibatch *m, int64_t row, const float *out, float *d)
{
    const Batch *b = m->batch;
    int64_t n = b->num_outputs, width = padded(n);
    const int64_t *actions = (const int64_t *)b->actions + row * b->num_choices;
    const float *old = b->dist_inputs + row * n;
    float logp[width], p[width], old_logp[width], q[width], log_prob = 0.0f, slope;
    less_largest(b, out, old, logp);
    memcpy(p, logp, width * sizeof(float));
    exp_row(p, width);
    if (b->kl_coeff != 0.0) {
        less_largest(b, old, old, old_logp);
        memcpy(q, old_logp, width * sizeof(float));
        exp_row(q, width);
    }
    for (int64_t c = 0, first = 0; c < b->num_choices; first += b->sizes[c++]) {
        normalise(logp + first, p + first, old + first, b->sizes[c]);
        log_prob += logp[first + actions[c]];
    }
    double loss = surrogate(b, row, log_prob, &slope);
    for (int64_t k = 0; k < n; k++) d[k] = -slope * p[k];
    for (int64_t c = 0, first = 0; c < b->num_choices; first += b->sizes[c++]) {
        int64_t size = b->sizes[c];
        d[first + actions[c]] += slope;
        if (b->entropy_coeff != 0.0)
            loss += entropy_bonus((float)b->entropy_coeff, logp + first, p + first, d + first, size);
        if (b->kl_coeff != 0.0) {
            normalise(old_logp + first, q + first, old + first, size);
            loss += kl_penalty((float)b->kl_coeff, logp + first, p + first, old_logp + first,
                               q + first, d + first, size);
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
