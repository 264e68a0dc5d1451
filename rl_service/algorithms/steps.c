/* Gradient steps of a net, of whatever kind, and whole passes of them.

A pass needs no Python, so two nets can learn at once in two threads. Several learners call a net's
gradient and `take_step` instead, and add up their gradients in between.
*/

#include "losses.h"

/* A net's gradient: see `feed_forward_gradient`. */
typedef double Gradient(const Net *, const Batch *, const void *plan, const void *inputs,
                        float *memory, const int64_t *rows, int64_t num_rows, int64_t begin,
                        int64_t end);

/* Clips the gradient, and takes one step of Adam; returns the norm before clipping. */
float take_step(Net *net, const Batch *batch)
{
    keep_inside(net, batch);
    int64_t n = net->num_parameters;
    double square = 0.0;
    for (int64_t i = 0; i < n; i += 4096) {
        float part = 0.0f;
        int64_t end = i + 4096 < n ? i + 4096 : n;
        for (int64_t k = i; k < end; k++) part += net->grad[k] * net->grad[k];
        square += part;
    }
    float norm = (float)sqrt(square), clip = (float)net->grad_clip / (norm + 1e-6f);
    float scale = clip < 1.0f ? clip : 1.0f;
    net->num_steps++;
    double t = (double)net->num_steps;
    float size = (float)(net->lr / (1.0 - pow(net->beta1, t)));
    float root = (float)sqrt(1.0 - pow(net->beta2, t)), eps = (float)net->epsilon;
    float b1 = (float)net->beta1, b2 = (float)net->beta2;
    float *restrict p = net->vector, *restrict g = net->grad;
    float *restrict m = net->exp_avg, *restrict v = net->exp_avg_sq;
    for (int64_t i = 0; i < n; i++) {
        g[i] *= scale;
        m[i] = b1 * m[i] + (1.0f - b1) * g[i];
        v[i] = b2 * v[i] + (1.0f - b2) * g[i] * g[i];
        p[i] -= size * m[i] / (sqrtf(v[i]) / root + eps);
    }
    return norm;
}

/* One pass: a step for each minibatch. */
void pass_over(Gradient *gradient, Net *net, const Batch *batch, const void *plan,
               const void *inputs, float *memory, const int64_t *order, int64_t num_rows,
               int64_t num_minibatches, float *losses, float *norms)
{
    for (int64_t i = 0; i < num_minibatches; i++) {
        int64_t size = num_rows / num_minibatches + (i < num_rows % num_minibatches);
        losses[i] = (float)gradient(net, batch, plan, inputs, memory, order, size, 0, size);
        norms[i] = take_step(net, batch);
        order += size;
    }
}
