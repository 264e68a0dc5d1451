/* The gradient of a small feed-forward net on a CPU.

The losses are those of policy.py and ppo.py, which torch differentiates; tests compare the two.
*/

#include "losses.h"

typedef struct {
    int64_t in, out;      /* features */
    int64_t weight, bias; /* where they begin in the vector of parameters */
    int64_t activation;
} Layer;

typedef struct {
    int64_t num_layers;
    const Layer *layers;
    int64_t num_steps; /* of each row of the batch, each of which is an input */
} FeedForward;

typedef struct {
    float *weight;     /* (out, P(in)), for the gradient by the inputs */
    float *transposed; /* (in, P(out)), for the pass forward */
    float *bias;       /* (P(out),) */
    float *grad;       /* (out, P(in)) */
    float *bias_grad;  /* (P(out),) */
    float *outputs;    /* (TILE, P(out)) */
    float *delta;      /* (TILE, P(out)) gradient by the outputs */
} Scratch;

static size_t layout(const FeedForward *f, Scratch *s, float *memory)
{
    size_t used = 0;
    for (int64_t l = 0; l < f->num_layers; l++) {
        size_t in = f->layers[l].in, out = f->layers[l].out, pin = padded(in), pout = padded(out);
#define TAKE(name, size) if (memory) s[l].name = memory + used; used += padded(size);
        TAKE(weight, out * pin)
        TAKE(transposed, in * pout)
        TAKE(bias, pout)
        TAKE(grad, out * pin)
        TAKE(bias_grad, pout)
        TAKE(outputs, TILE * pout)
        TAKE(delta, TILE * pout)
#undef TAKE
    }
    return used;
}

static void pack(const FeedForward *f, const Net *net, Scratch *s)
{
    for (int64_t l = 0; l < f->num_layers; l++) {
        const Layer *layer = f->layers + l;
        int64_t in = layer->in, out = layer->out, pin = padded(in), pout = padded(out);
        const float *w = net->vector + layer->weight;
        for (int64_t j = 0; j < out; j++) {
            memcpy(s[l].weight + j * pin, w + j * in, in * sizeof(float));
            for (int64_t i = 0; i < in; i++) s[l].transposed[i * pout + j] = w[j * in + i];
        }
        memcpy(s[l].bias, net->vector + layer->bias, out * sizeof(float));
        memset(s[l].grad, 0, out * pin * sizeof(float));
        memset(s[l].bias_grad, 0, pout * sizeof(float));
    }
}

static void unpack_gradient(const FeedForward *f, const Net *net, Scratch *s)
{
    for (int64_t l = 0; l < f->num_layers; l++) {
        const Layer *layer = f->layers + l;
        int64_t in = layer->in, pin = padded(in);
        for (int64_t j = 0; j < layer->out; j++)
            memcpy(net->grad + layer->weight + j * in, s[l].grad + j * pin, in * sizeof(float));
        memcpy(net->grad + layer->bias, s[l].bias_grad, layer->out * sizeof(float));
    }
}

static void forward(const FeedForward *f, Scratch *s, const float *inputs, int64_t rows)
{
    for (int64_t l = 0; l < f->num_layers; l++) {
        const Layer *layer = f->layers + l;
        int64_t pout = padded(layer->out), pin = padded(layer->in);
        for (int64_t r = 0; r < rows; r++)
            memcpy(s[l].outputs + r * pout, s[l].bias, pout * sizeof(float));
        add_product(rows, pout, layer->in, s[l].outputs, pout, inputs, pin, 1, s[l].transposed,
                    pout);
        activate(s[l].outputs, rows * pout, layer->activation);
        inputs = s[l].outputs;
    }
}

/* From the gradient by a layer's outputs to that by its sums; y are the outputs. */
static void deactivate(float *d, const float *y, int64_t n, int64_t activation)
{
    if (activation == TANH)
        for (int64_t i = 0; i < n; i++) d[i] *= 1.0f - y[i] * y[i];
    else if (activation == RELU)
        for (int64_t i = 0; i < n; i++) d[i] = y[i] > 0.0f ? d[i] : 0.0f;
}

static void backward(const FeedForward *f, Scratch *s, const float *inputs, int64_t rows)
{
    for (int64_t l = f->num_layers - 1; l >= 0; l--) {
        const Layer *layer = f->layers + l;
        int64_t pout = padded(layer->out), pin = padded(layer->in);
        const float *below = l ? s[l - 1].outputs : inputs;
        deactivate(s[l].delta, s[l].outputs, rows * pout, layer->activation);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < pout; j++) s[l].bias_grad[j] += s[l].delta[r * pout + j];
        add_product(layer->out, pin, rows, s[l].grad, pin, s[l].delta, 1, pout, below, pin);
        if (l == 0) break;
        memset(s[l - 1].delta, 0, rows * pin * sizeof(float));
        add_product(rows, pin, layer->out, s[l - 1].delta, pin, s[l].delta, pout, 1, s[l].weight,
                    pin);
    }
}

/* Floats of memory that the gradient wants; they are zero at first, and padding stays so. */
int64_t feed_forward_room(const FeedForward *f)
{
    Scratch s[f->num_layers];
    return (int64_t)layout(f, s, NULL) + TILE * padded(f->layers[0].in);
}

/* The part of rows begin ... end in a minibatch's loss. The same part of its gradient is left in
   net->grad: summed over all parts, both are the means over the minibatch's steps. */
double feed_forward_gradient(const Net *net, const Batch *batch, const void *plan,
                             const void *inputs, float *memory, const int64_t *rows,
                             int64_t num_rows, int64_t begin, int64_t end)
{
    const FeedForward *f = plan;
    const float *x = inputs;
    Scratch s[f->num_layers], *top = s + f->num_layers - 1;
    float *tile = memory + layout(f, s, memory), room[3 * batch->num_outputs];
    int64_t in = f->layers[0].in, pin = padded(in), pout = padded(batch->num_outputs);
    int64_t steps = f->num_steps, at[TILE];
    Minibatch m = open_minibatch(batch, net, rows, num_rows, steps, room);
    double loss = 0.0;
    pack(f, net, s);
    for (int64_t start = begin * steps; start < end * steps; start += TILE) {
        int64_t count = end * steps - start < TILE ? end * steps - start : TILE;
        for (int64_t r = 0; r < count; r++) {
            at[r] = rows[(start + r) / steps] * steps + (start + r) % steps;
            memcpy(tile + r * pin, x + at[r] * in, in * sizeof(float));
        }
        forward(f, s, tile, count);
        memset(top->delta, 0, count * pout * sizeof(float));
        for (int64_t r = 0; r < count; r++)
            loss += loss_of(&m, at[r], top->outputs + r * pout, top->delta + r * pout);
        backward(f, s, tile, count);
    }
    unpack_gradient(f, net, s);
    close_minibatch(&m, net);
    return loss * m.weight;
}
