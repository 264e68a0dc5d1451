/* The gradient of a GPT-2 on a CPU, as a critic or an actor: what gpt2_critic.py, gpt2_actor.py
and transformer.py compute for steps of one token each, without dropout, and its derivative.

A minibatch is made of chunks of T steps, of which the last V have outputs. Chunks pass through the
net a few at a time, as rows (chunk, step) of features. A layer computes its keys and values for all
rows that it is given, and the rest for the rows that the layers above it look at.

The weights around the attention are put in its order of features first.
*/

#include "attention.h"
#include "losses.h"

enum { LN_1, ATTN, PROJ, LN_2, FC, OUT, NUM_PARTS };

typedef struct {
    int64_t reach;             /* steps that it looks back, its own included */
    int64_t weight[NUM_PARTS]; /* where they begin in the vector of parameters */
    int64_t bias[NUM_PARTS];
} Block;

typedef struct {
    int64_t num_layers, width, num_heads, hidden, obs_size, num_outputs;
    const Block *blocks;
    int64_t embed[2], embed_ln[2], ln_f[2], head[2]; /* weight and bias */
    double epsilon;                                  /* of the norms */
    int64_t num_steps, num_last;                     /* T and V of a chunk */
    const float *turns; /* (T, D/2, 2) cosine and sine of each pair of features; none: no time */
} Trunk;

typedef struct {
    const float *obs;        /* (M, T, O) */
    const int64_t *segments; /* (M, T), negative for padding */
} Chunks;

typedef struct {
    int64_t rows_in, rows_out; /* of a chunk */
    const float *w[NUM_PARTS]; /* (in, out); attn and proj in the order of features (D, H) */
    const float *t[NUM_PARTS]; /* transposed */
    float *grad[NUM_PARTS], *bias_grad[NUM_PARTS];
    float *attn_bias;                      /* (3 C,) */
    float *x, *normed, *q, *k, *v, *probs; /* x: what the layer reads */
    float *read, *mid, *mid_normed, *fc, *tanhs, *gelu;
    float *stats_1, *stats_2; /* (rows, 2) mean and inverse deviation */
} Sublayers;

typedef struct {
    int64_t group; /* chunks at a time */
    Sublayers *layers;
    float *obs, *embed_t, *embed_grad, *embedded, *embed_stats;
    float *top, *top_normed, *top_stats, *head_t, *outputs, *delta;
    float *d_x, *d_mid, *d_fc, *d_normed, *d_q, *d_k, *d_v, *d_read;
} Work;

/* ---- All queries of a few chunks ---- */

static void turn_all(const Trunk *trunk, float *x, int64_t group, int64_t rows, float direction)
{
    int64_t head_size = trunk->width / trunk->num_heads;
    if (!trunk->turns) return;
    const float *turns = trunk->turns + (trunk->num_steps - rows) * head_size;
    for (int64_t g = 0; g < group; g++)
        for (int64_t i = 0; i < rows; i++, x += trunk->width)
            turn(x, turns + i * head_size, trunk->num_heads, head_size, direction);
}

/* All rows of a few chunks; forward, or backward if there is a gradient. */
static void attend_all(const Trunk *trunk, const Sublayers *l, int64_t reach,
                       const int64_t *segments, int64_t group, Work *backward)
{
    int64_t heads = trunk->num_heads, width = trunk->width, size = width / heads;
    int64_t skipped = trunk->num_steps - l->rows_in;
    for (int64_t row = 0; row < group * l->rows_out; row++) {
        int64_t chunk = row / l->rows_out, i = row % l->rows_out + l->rows_in - l->rows_out;
        const int64_t *own = segments + chunk * trunk->num_steps + skipped;
        int64_t first = first_seen(own, i, reach), count = i - first + 1;
        int64_t from = (chunk * l->rows_in + first) * width, at = row * width;
        float *probs = l->probs + row * reach * heads;
        const float *q = l->q + at, *k = l->k + from, *v = l->v + from;
#define EACH(number)                                                                              \
    if (!backward) attend(q, k, v, count, number, size, probs, l->read + at);                     \
    else                                                                                          \
        attend_backward(q, k, v, probs, backward->d_read + at, count, number, size,               \
                        backward->d_q + at, backward->d_k + from, backward->d_v + from);
        if (heads == 8) { EACH(8) } else { EACH(heads) }
    }
}

/* ---- Products with the rows of chunks ---- */

/* y (rows, out) = x (rows, in) w (in, out) + bias */
static void affine(const float *x, const float *w, const float *bias, int64_t rows, int64_t in,
                   int64_t out, float *y)
{
    for (int64_t r = 0; r < rows; r++) memcpy(y + r * out, bias, out * sizeof(float));
    add_product(rows, out, in, y, out, x, in, 1, w, out);
}

static void affine_backward(const float *x, const float *t, const float *d, int64_t rows,
                            int64_t in, int64_t out, float *d_x, float *grad, float *bias_grad)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < out; j++) bias_grad[j] += d[r * out + j];
    add_product(in, out, rows, grad, out, x, 1, in, d, out);
    add_product(rows, in, out, d_x, in, d, out, 1, t, in);
}

/* ---- The net ---- */

static void pass_layer(const Trunk *trunk, const Net *net, const Work *work, int64_t number,
                       const int64_t *segments, int64_t group, float *next)
{
    const Block *block = trunk->blocks + number;
    const Sublayers *l = work->layers + number;
    const float *p = net->vector;
    int64_t width = trunk->width, rows = group * l->rows_in, out = group * l->rows_out;
    int64_t before = l->rows_in - l->rows_out;
    norm(l->x, p + block->weight[LN_1], p + block->bias[LN_1], trunk->epsilon, rows, width,
         l->normed, l->stats_1);
    const float *w = l->w[ATTN], *bias = l->attn_bias;
    for (int64_t g = 0; g < group; g++)
        affine(l->normed + (g * l->rows_in + before) * width, w, bias, l->rows_out, width, width,
               l->q + g * l->rows_out * width);
    affine(l->normed, w + width * width, bias + width, rows, width, width, l->k);
    affine(l->normed, w + 2 * width * width, bias + 2 * width, rows, width, width, l->v);
    turn_all(trunk, l->q, group, l->rows_out, 1.0f);
    turn_all(trunk, l->k, group, l->rows_in, 1.0f);
    attend_all(trunk, l, block->reach, segments, group, NULL);
    affine(l->read, l->w[PROJ], p + block->bias[PROJ], out, width, width, l->mid);
    for (int64_t g = 0; g < group; g++)
        add(l->mid + g * l->rows_out * width, l->x + (g * l->rows_in + before) * width,
            l->rows_out * width);
    norm(l->mid, p + block->weight[LN_2], p + block->bias[LN_2], trunk->epsilon, out, width,
         l->mid_normed, l->stats_2);
    affine(l->mid_normed, l->w[FC], p + block->bias[FC], out, width, trunk->hidden, l->fc);
    gelu(l->fc, out * trunk->hidden, l->tanhs, l->gelu);
    affine(l->gelu, l->w[OUT], p + block->bias[OUT], out, trunk->hidden, width, next);
    add(next, l->mid, out * width);
}

/* From the gradient by a layer's outputs, d_x, to that by its inputs. */
static void pass_layer_back(const Trunk *trunk, const Net *net, Work *work, int64_t number,
                            const int64_t *segments, int64_t group)
{
    const Block *block = trunk->blocks + number;
    const Sublayers *l = work->layers + number;
    const float *p = net->vector;
    int64_t width = trunk->width, rows = group * l->rows_in, out = group * l->rows_out;
    int64_t before = l->rows_in - l->rows_out;
    memset(work->d_fc, 0, out * trunk->hidden * sizeof(float));
    affine_backward(l->gelu, l->t[OUT], work->d_x, out, trunk->hidden, width, work->d_fc,
                    l->grad[OUT], l->bias_grad[OUT]);
    gelu_backward(l->fc, l->tanhs, out * trunk->hidden, work->d_fc);
    memset(work->d_normed, 0, out * width * sizeof(float));
    affine_backward(l->mid_normed, l->t[FC], work->d_fc, out, width, trunk->hidden, work->d_normed,
                    l->grad[FC], l->bias_grad[FC]);
    memcpy(work->d_mid, work->d_x, out * width * sizeof(float));
    norm_backward(l->mid, l->stats_2, p + block->weight[LN_2], work->d_normed, out, width,
                  work->d_mid, l->grad[LN_2], l->bias_grad[LN_2]);
    memset(work->d_read, 0, out * width * sizeof(float));
    affine_backward(l->read, l->t[PROJ], work->d_mid, out, width, width, work->d_read,
                    l->grad[PROJ], l->bias_grad[PROJ]);
    memset(work->d_k, 0, rows * width * sizeof(float));
    memset(work->d_v, 0, rows * width * sizeof(float));
    attend_all(trunk, l, block->reach, segments, group, work);
    turn_all(trunk, work->d_q, group, l->rows_out, -1.0f);
    turn_all(trunk, work->d_k, group, l->rows_in, -1.0f);
    memset(work->d_normed, 0, rows * width * sizeof(float));
    const float *t = l->t[ATTN];
    float *grad = l->grad[ATTN], *bias_grad = l->bias_grad[ATTN];
    for (int64_t g = 0; g < group; g++) {
        int64_t at = (g * l->rows_in + before) * width;
        affine_backward(l->normed + at, t, work->d_q + g * l->rows_out * width, l->rows_out, width,
                        width, work->d_normed + at, grad, bias_grad);
    }
    affine_backward(l->normed, t + width * width, work->d_k, rows, width, width, work->d_normed,
                    grad + width * width, bias_grad + width);
    affine_backward(l->normed, t + 2 * width * width, work->d_v, rows, width, width, work->d_normed,
                    grad + 2 * width * width, bias_grad + 2 * width);
    memset(work->d_x, 0, rows * width * sizeof(float));
    for (int64_t g = 0; g < group; g++)
        memcpy(work->d_x + (g * l->rows_in + before) * width, work->d_mid + g * l->rows_out * width,
               l->rows_out * width * sizeof(float));
    norm_backward(l->x, l->stats_1, p + block->weight[LN_1], work->d_normed, rows, width, work->d_x,
                  l->grad[LN_1], l->bias_grad[LN_1]);
}

/* Outputs of the last steps of a few chunks, (group * V, P(num_outputs)) in work->outputs. */
static void pass_forward(const Trunk *trunk, const Net *net, Work *work, const int64_t *segments,
                         int64_t group)
{
    const float *p = net->vector;
    int64_t width = trunk->width, rows = group * trunk->num_steps, in = padded(trunk->obs_size);
    for (int64_t r = 0; r < rows; r++)
        memcpy(work->embedded + r * width, p + trunk->embed[1], width * sizeof(float));
    add_product(rows, width, trunk->obs_size, work->embedded, width, work->obs, in, 1,
                work->embed_t, width);
    norm(work->embedded, p + trunk->embed_ln[0], p + trunk->embed_ln[1], 1e-5f, rows, width,
         work->layers[0].x, work->embed_stats);
    for (int64_t l = 0; l < trunk->num_layers; l++)
        pass_layer(trunk, net, work, l, segments, group,
                   l + 1 < trunk->num_layers ? work->layers[l + 1].x : work->top);
    int64_t last = group * trunk->num_last, n = trunk->num_outputs, pn = padded(n);
    norm(work->top, p + trunk->ln_f[0], p + trunk->ln_f[1], trunk->epsilon, last, width,
         work->top_normed, work->top_stats);
    for (int64_t r = 0; r < last; r++)
        memcpy(work->outputs + r * pn, p + trunk->head[1], n * sizeof(float));
    add_product(last, pn, width, work->outputs, pn, work->top_normed, width, 1, work->head_t, pn);
}

/* From work->delta, the gradient by these outputs, to that by the parameters. */
static void pass_backward(const Trunk *trunk, const Net *net, Work *work, const int64_t *segments,
                          int64_t group)
{
    const float *p = net->vector;
    float *grad = net->grad;
    int64_t width = trunk->width, rows = group * trunk->num_steps, in = padded(trunk->obs_size);
    int64_t last = group * trunk->num_last, n = trunk->num_outputs, pn = padded(n);
    for (int64_t r = 0; r < last; r++) add(grad + trunk->head[1], work->delta + r * pn, n);
    add_product(n, width, last, grad + trunk->head[0], width, work->delta, 1, pn, work->top_normed,
                width);
    memset(work->d_normed, 0, last * width * sizeof(float));
    add_product(last, width, n, work->d_normed, width, work->delta, pn, 1, p + trunk->head[0],
                width);
    memset(work->d_x, 0, last * width * sizeof(float));
    norm_backward(work->top, work->top_stats, p + trunk->ln_f[0], work->d_normed, last, width,
                  work->d_x, grad + trunk->ln_f[0], grad + trunk->ln_f[1]);
    for (int64_t l = trunk->num_layers - 1; l >= 0; l--)
        pass_layer_back(trunk, net, work, l, segments, group);
    memset(work->d_normed, 0, rows * width * sizeof(float));
    norm_backward(work->embedded, work->embed_stats, p + trunk->embed_ln[0], work->d_x, rows, width,
                  work->d_normed, grad + trunk->embed_ln[0], grad + trunk->embed_ln[1]);
    for (int64_t r = 0; r < rows; r++)
        add(grad + trunk->embed[1], work->d_normed + r * width, width);
    add_product(width, in, rows, work->embed_grad, in, work->d_normed, 1, width, work->obs, in);
}

/* ---- Weights, in the order and the orientation that the passes want ---- */

static int64_t place(const Trunk *trunk, int64_t feature) /* (H, D) to (D, H) */
{
    int64_t size = trunk->width / trunk->num_heads;
    return feature % size * trunk->num_heads + feature / size;
}

static void transpose(const float *x, int64_t rows, int64_t columns, float *y)
{
    for (int64_t i = 0; i < rows; i += 8) /* in squares, which stay in the cache */
        for (int64_t j = 0; j < columns; j++)
            for (int64_t k = i; k < i + 8 && k < rows; k++) y[j * rows + k] = x[k * columns + j];
}

static void pack_trunk(const Trunk *trunk, const Net *net, Work *work)
{
    int64_t width = trunk->width, hidden = trunk->hidden, square = width * width;
    for (int64_t n = 0; n < trunk->num_layers; n++) {
        const Block *block = trunk->blocks + n;
        Sublayers *l = work->layers + n;
        const float *attn = net->vector + block->weight[ATTN];
        const float *bias = net->vector + block->bias[ATTN];
        const float *proj = net->vector + block->weight[PROJ];
        float *w = (float *)l->w[ATTN], *w_proj = (float *)l->w[PROJ];
        for (int64_t c = 0; c < width; c++) {
            int64_t to = place(trunk, c);
            for (int64_t part = 0; part < 3; part++) {
                for (int64_t i = 0; i < width; i++)
                    w[part * square + i * width + to] = attn[i * 3 * width + part * width + c];
                l->attn_bias[part * width + to] = bias[part * width + c];
            }
            memcpy(w_proj + to * width, proj + c * width, width * sizeof(float));
        }
        for (int64_t part = 0; part < 3; part++)
            transpose(w + part * square, width, width, (float *)l->t[ATTN] + part * square);
        transpose(w_proj, width, width, (float *)l->t[PROJ]);
        l->w[FC] = net->vector + block->weight[FC];
        l->w[OUT] = net->vector + block->weight[OUT];
        transpose(l->w[FC], width, hidden, (float *)l->t[FC]);
        transpose(l->w[OUT], hidden, width, (float *)l->t[OUT]);
        memset(l->grad[ATTN], 0, 3 * square * sizeof(float));
        memset(l->bias_grad[ATTN], 0, 3 * width * sizeof(float));
        memset(l->grad[PROJ], 0, square * sizeof(float));
    }
    transpose(net->vector + trunk->embed[0], width, trunk->obs_size, work->embed_t);
    int64_t n = trunk->num_outputs, pn = padded(n);
    for (int64_t j = 0; j < n; j++)
        for (int64_t c = 0; c < width; c++)
            work->head_t[c * pn + j] = net->vector[trunk->head[0] + j * width + c];
    memset(work->embed_grad, 0, width * padded(trunk->obs_size) * sizeof(float));
    memset(net->grad, 0, net->num_parameters * sizeof(float));
}

static void unpack_trunk_gradient(const Trunk *trunk, const Net *net, const Work *work)
{
    int64_t width = trunk->width, square = width * width, in = padded(trunk->obs_size);
    for (int64_t n = 0; n < trunk->num_layers; n++) {
        const Block *block = trunk->blocks + n;
        const Sublayers *l = work->layers + n;
        float *attn = net->grad + block->weight[ATTN], *bias = net->grad + block->bias[ATTN];
        for (int64_t c = 0; c < width; c++) {
            int64_t from = place(trunk, c);
            for (int64_t part = 0; part < 3; part++) {
                for (int64_t i = 0; i < width; i++)
                    attn[i * 3 * width + part * width + c] =
                        l->grad[ATTN][part * square + i * width + from];
                bias[part * width + c] = l->bias_grad[ATTN][part * width + from];
            }
            memcpy(net->grad + block->weight[PROJ] + c * width, l->grad[PROJ] + from * width,
                   width * sizeof(float));
        }
    }
    for (int64_t c = 0; c < width; c++)
        memcpy(net->grad + trunk->embed[0] + c * trunk->obs_size, work->embed_grad + c * in,
               trunk->obs_size * sizeof(float));
}

/* Divides memory among the buffers; with no memory, only adds up. */
static size_t divide(const Trunk *trunk, const Net *net, Work *work, float *memory)
{
    size_t used = 0, width = trunk->width, hidden = trunk->hidden, group = work->group;
    int64_t above = 0;
    for (int64_t n = 0; n < trunk->num_layers; n++) above += trunk->blocks[n].reach - 1;
    int64_t rows = trunk->num_steps;
#define TAKE(name, size) if (memory) name = memory + used; used += padded(size);
    for (int64_t n = 0; n < trunk->num_layers; n++) {
        const Block *block = trunk->blocks + n;
        Sublayers *l = work->layers + n;
        above -= block->reach - 1;
        l->rows_in = rows;
        l->rows_out = rows = rows < trunk->num_last + above ? rows : trunk->num_last + above;
        size_t in = group * l->rows_in, out = group * l->rows_out;
        TAKE(l->w[ATTN], 3 * width * width)
        TAKE(l->t[ATTN], 3 * width * width)
        TAKE(l->grad[ATTN], 3 * width * width)
        TAKE(l->attn_bias, 3 * width)
        TAKE(l->bias_grad[ATTN], 3 * width)
        TAKE(l->w[PROJ], width * width)
        TAKE(l->t[PROJ], width * width)
        TAKE(l->grad[PROJ], width * width)
        TAKE(l->t[FC], width * hidden)
        TAKE(l->t[OUT], width * hidden)
        for (int part = 0; part < NUM_PARTS; part++) {
            if (part != ATTN && part != PROJ) l->grad[part] = net->grad + block->weight[part];
            if (part != ATTN) l->bias_grad[part] = net->grad + block->bias[part];
        }
        TAKE(l->x, in * width)
        TAKE(l->normed, in * width)
        TAKE(l->k, in * width)
        TAKE(l->v, in * width)
        TAKE(l->stats_1, 2 * in)
        TAKE(l->q, out * width)
        TAKE(l->probs, out * block->reach * trunk->num_heads)
        TAKE(l->read, out * width)
        TAKE(l->mid, out * width)
        TAKE(l->mid_normed, out * width)
        TAKE(l->stats_2, 2 * out)
        TAKE(l->fc, out * hidden)
        TAKE(l->tanhs, out * hidden)
        TAKE(l->gelu, out * hidden)
    }
    size_t all = group * trunk->num_steps, in = padded(trunk->obs_size);
    TAKE(work->obs, all * in)
    TAKE(work->embed_t, in * width)
    TAKE(work->embed_grad, in * width)
    TAKE(work->embedded, all * width)
    TAKE(work->embed_stats, 2 * all)
    TAKE(work->top, all * width)
    TAKE(work->top_normed, all * width)
    TAKE(work->top_stats, 2 * all)
    TAKE(work->head_t, width * padded(trunk->num_outputs))
    TAKE(work->outputs, all * padded(trunk->num_outputs))
    TAKE(work->delta, all * padded(trunk->num_outputs))
    TAKE(work->d_x, all * width)
    TAKE(work->d_mid, all * width)
    TAKE(work->d_normed, all * width)
    TAKE(work->d_read, all * width)
    TAKE(work->d_q, all * width)
    TAKE(work->d_k, all * width)
    TAKE(work->d_v, all * width)
    TAKE(work->d_fc, all * hidden)
#undef TAKE
    return used;
}

static const int64_t ROWS_AT_ONCE = 256; /* their activations stay in the cache */

static int64_t chunks_at_once(const Trunk *trunk)
{
    return trunk->num_steps < ROWS_AT_ONCE ? ROWS_AT_ONCE / trunk->num_steps : 1;
}

/* As `feed_forward_room`. */
int64_t gpt2_room(const Trunk *trunk)
{
    Sublayers layers[trunk->num_layers];
    Net nowhere = {0};
    Work work = {.group = chunks_at_once(trunk), .layers = layers};
    return (int64_t)divide(trunk, &nowhere, &work, NULL);
}

/* As `feed_forward_gradient`, of chunks begin ... end. */
double gpt2_gradient(const Net *net, const Batch *batch, const void *plan, const void *inputs,
                     float *memory, const int64_t *order, int64_t num_chunks, int64_t begin,
                     int64_t end)
{
    const Trunk *trunk = plan;
    const Chunks *chunks = inputs;
    Sublayers layers[trunk->num_layers];
    Work work = {.group = chunks_at_once(trunk), .layers = layers};
    divide(trunk, net, &work, memory);
    int64_t steps = trunk->num_steps, last = trunk->num_last, n = batch->num_outputs;
    int64_t size = trunk->obs_size, in = padded(size), pn = padded(n);
    int64_t segments[work.group * steps];
    float room[3 * n];
    Minibatch m = open_minibatch(batch, net, order, num_chunks, last, room);
    double loss = 0.0;
    pack_trunk(trunk, net, &work);
    for (int64_t start = begin; start < end; start += work.group) {
        int64_t group = end - start < work.group ? end - start : work.group;
        for (int64_t g = 0; g < group; g++) {
            int64_t chunk = order[start + g];
            memcpy(segments + g * steps, chunks->segments + chunk * steps, steps * sizeof(int64_t));
            for (int64_t i = 0; i < steps; i++)
                memcpy(work.obs + (g * steps + i) * in, chunks->obs + (chunk * steps + i) * size,
                       size * sizeof(float));
        }
        pass_forward(trunk, net, &work, segments, group);
        memset(work.delta, 0, group * last * pn * sizeof(float));
        for (int64_t row = 0; row < group * last; row++) {
            int64_t at = order[start + row / last] * last + row % last;
            loss += loss_of(&m, at, work.outputs + row * pn, work.delta + row * pn);
        }
        pass_backward(trunk, net, &work, segments, group);
    }
    unpack_trunk_gradient(trunk, net, &work);
    close_minibatch(&m, net);
    return loss * m.weight;
}
