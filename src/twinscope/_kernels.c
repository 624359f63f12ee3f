/* What twinscope.metrics needs of arrays, in one pass each. Optional: without it numpy takes many.
 *
 * `twinscope_stats`, for array_stats: an array's least and greatest element, the sums of its elements and of their
 * squares, and the sum of its bit patterns. `twinscope_pair`, for compare_arrays: further below.
 *
 * No Python header is needed. An array comes as numpy's documented PyArrayInterface (`array.__array_struct__`), which
 * holds pointer, shape, strides and flags, so that one pointer is all that a call passes.
 *
 * NaN and infinities: least and greatest skip NaN, but squares are then NaN or infinite, and never finite again, so a
 * finite sum of squares says that every element was finite. That is why this must not be compiled with -ffast-math.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h> /* defines __GLIBC__ */
#include <string.h>

/* Raised whenever a signature or a meaning changes; kernels.py refuses another one. */
#define ABI 2

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define EXPORT __attribute__((visibility("default")))
#else
#define EXPORT
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

/* One build for every x86-64, the loader picks. Needs ifunc, which musl has not. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

/* Compilers do not reorder float sums by themselves; with a running sum per lane there is nothing to reorder. */
#define LANES 32
/* Elements summed in float32 before they go to float64: 16 per lane, which keeps sums within about 1e-7. */
#define BLOCK 512
/* numpy's greatest number of axes. */
#define AXES 64

enum { FLOAT32 = 0, BFLOAT16 = 1 };
enum { C_CONTIGUOUS = 0x1, ALIGNED = 0x100, NOT_SWAPPED = 0x200 };

/* https://numpy.org/doc/stable/reference/arrays.interface.html#c-struct-access */
typedef struct {
    int two;
    int nd;
    char typekind;
    int itemsize;
    int flags;
    intptr_t *shape;
    intptr_t *strides;
    void *data;
} array_interface;

typedef struct {
    double total[LANES], squares[LANES];
    float low[LANES], high[LANES];
    uint32_t bits[LANES];
} state;

INLINE void add_block(state *s, const float *x, size_t n) {
    float total[LANES] = {0}, squares[LANES] = {0}, low[LANES], high[LANES];
    uint32_t bits[LANES];
    memcpy(low, s->low, sizeof low);
    memcpy(high, s->high, sizeof high);
    memcpy(bits, s->bits, sizeof bits);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            float v = x[i + k];
            uint32_t b;
            memcpy(&b, &v, sizeof b);
            total[k] += v;
            squares[k] += v * v;
            low[k] = v < low[k] ? v : low[k];
            high[k] = v > high[k] ? v : high[k];
            bits[k] += b;
        }
    }
    for (int k = 0; i < n; i++, k++) {
        float v = x[i];
        uint32_t b;
        memcpy(&b, &v, sizeof b);
        total[k] += v;
        squares[k] += v * v;
        low[k] = v < low[k] ? v : low[k];
        high[k] = v > high[k] ? v : high[k];
        bits[k] += b;
    }
    memcpy(s->low, low, sizeof low);
    memcpy(s->high, high, sizeof high);
    memcpy(s->bits, bits, sizeof bits);
    for (int k = 0; k < LANES; k++) {
        s->total[k] += total[k];
        s->squares[k] += squares[k];
    }
}

INLINE void add_run(state *s, const float *x, size_t n) {
    for (; n > BLOCK; x += BLOCK, n -= BLOCK) add_block(s, x, BLOCK);
    add_block(s, x, n);
}

/* Copies n elements, `step` bytes apart, of whatever alignment and byte order, as float32. */
INLINE void gather(float *to, const char *from, size_t n, intptr_t step, int kind, int swapped) {
    for (size_t i = 0; i < n; i++) {
        uint32_t b;
        if (kind == FLOAT32) {
            memcpy(&b, from + (intptr_t)i * step, sizeof b);
            if (swapped) b = b >> 24 | (b >> 8 & 0xff00u) | (b << 8 & 0xff0000u) | b << 24;
        } else {
            uint16_t half;
            memcpy(&half, from + (intptr_t)i * step, sizeof half);
            if (swapped) half = (uint16_t)(half >> 8 | half << 8);
            b = (uint32_t)half << 16; /* a bfloat16 is the upper half of a float32 */
        }
        memcpy(to + i, &b, sizeof b);
    }
}

/* The array's axes in the order of memory, the widest step first, without those that need no step of their own:
 * extents of 1, and an axis that goes on where the next one ends. Returns how many are left, at least 1. */
static int simplify(const array_interface *a, intptr_t *shape, intptr_t *strides, const char **data) {
    int n = 0;
    for (int axis = 0; axis < a->nd; axis++) {
        intptr_t extent = a->shape[axis], stride = a->strides[axis];
        if (extent == 1) continue;
        if (stride < 0) {
            *data += (extent - 1) * stride;
            stride = -stride;
        }
        int at = n++;
        /* Repeated elements (stride 0) go outermost, so that the innermost axis is still the dense one. */
        for (; at > 0 && strides[at - 1] != 0 && (stride == 0 || strides[at - 1] < stride); at--) {
            shape[at] = shape[at - 1];
            strides[at] = strides[at - 1];
        }
        shape[at] = extent;
        strides[at] = stride;
    }
    if (n == 0) {
        shape[0] = 1;
        strides[0] = a->itemsize;
        return 1;
    }
    int last = 0;
    for (int axis = 1; axis < n; axis++) {
        if (strides[last] == shape[axis] * strides[axis]) {
            shape[last] *= shape[axis];
            strides[last] = strides[axis];
        } else {
            last++;
            shape[last] = shape[axis];
            strides[last] = strides[axis];
        }
    }
    return last + 1;
}

/* Least, greatest, sum, sum of squares, sum of bit patterns modulo 2**32 (of bfloat16: modulo 2**16) of an array. Returns 0, and leaves `out` alone, if it is empty or not what `kind` says. */
EXPORT CLONES int twinscope_stats(const array_interface *a, int kind, double *out) {
    int size = kind == FLOAT32 ? 4 : 2;
    if (a->two != 2 || a->itemsize != size || a->typekind != (kind == FLOAT32 ? 'f' : 'V') || a->nd > AXES ||
        (kind != FLOAT32 && kind != BFLOAT16))
        return 0;
    int swapped = !(a->flags & NOT_SWAPPED);
    intptr_t shape[AXES + 1], strides[AXES + 1], place[AXES + 1];
    const char *data = a->data;
    int axes = 1;
    if (a->flags & C_CONTIGUOUS) {
        shape[0] = 1;
        strides[0] = size;
        for (int axis = 0; axis < a->nd; axis++) shape[0] *= a->shape[axis];
    } else {
        for (int axis = 0; axis < a->nd; axis++)
            if (a->shape[axis] == 0) return 0;
        axes = simplify(a, shape, strides, &data);
    }
    intptr_t run = shape[axes - 1], step = strides[axes - 1];
    if (run == 0) return 0;

    state s;
    for (int k = 0; k < LANES; k++) {
        s.total[k] = s.squares[k] = 0;
        s.low[k] = INFINITY;
        s.high[k] = -INFINITY;
        s.bits[k] = 0;
    }
    memset(place, 0, sizeof place);
    /* Short runs are gathered, so that lanes are full and a block's fixed cost is shared. */
    float gathered[BLOCK];
    intptr_t held = 0;
    int direct = kind == FLOAT32 && !swapped && (a->flags & ALIGNED) && step == size && run >= BLOCK / 2;
    for (;;) {
        if (direct) {
            add_run(&s, (const float *)data, (size_t)run);
        } else {
            const char *from = data;
            for (intptr_t left = run; left > 0;) {
                intptr_t n = BLOCK - held < left ? BLOCK - held : left;
                float *to = gathered + held;
                /* With constants, so that each becomes a loop of its own. */
                if (swapped)
                    gather(to, from, (size_t)n, step, kind, 1);
                else if (kind == FLOAT32 && step == 4)
                    memcpy(to, from, (size_t)n * sizeof *to);
                else if (kind == FLOAT32)
                    gather(to, from, (size_t)n, step, FLOAT32, 0);
                else if (step == 2)
                    gather(to, from, (size_t)n, 2, BFLOAT16, 0);
                else
                    gather(to, from, (size_t)n, step, BFLOAT16, 0);
                from += n * step;
                left -= n;
                held += n;
                if (held == BLOCK) {
                    add_block(&s, gathered, BLOCK);
                    held = 0;
                }
            }
        }
        int axis = axes - 2;
        for (; axis >= 0; axis--) {
            data += strides[axis];
            if (++place[axis] < shape[axis]) break;
            data -= shape[axis] * strides[axis];
            place[axis] = 0;
        }
        if (axis < 0) break;
    }
    if (held) add_block(&s, gathered, (size_t)held);

    double total = 0, squares = 0;
    float low = s.low[0], high = s.high[0];
    uint32_t bits = 0;
    for (int k = 0; k < LANES; k++) {
        total += s.total[k];
        squares += s.squares[k];
        low = s.low[k] < low ? s.low[k] : low;
        high = s.high[k] > high ? s.high[k] : high;
        bits += s.bits[k];
    }
    out[0] = low;
    out[1] = high;
    out[2] = total;
    out[3] = squares;
    out[4] = kind == FLOAT32 ? bits : bits >> 16;
    return 1;
}

/* What twinscope.metrics.compare_arrays needs of two runs of float32 or bfloat16, in one pass.
 *
 * Of c come no sums, but of the differences d = c - r: those keep their digits where the two nearly agree. The order
 * of all additions is fixed, so the same runs give the same numbers each time. */

/* Fewer than LANES: with a dozen running values each, more would leave the registers. */
#define PAIR_LANES 16

enum { SUM_R, SUM_RR, SUM_D, SUM_A, SUM_DD, SUM_RD, SUM_Q, SUMS };

typedef struct {
    double sums[SUMS][PAIR_LANES];
    float most[PAIR_LANES];
    int32_t within[PAIR_LANES], left_out[PAIR_LANES];
    float largest;
    size_t worst;
} pair_state;

INLINE float magnitude(float v) {
    uint32_t b;
    memcpy(&b, &v, sizeof b);
    b &= 0x7fffffffu;
    memcpy(&v, &b, sizeof v);
    return v;
}

/* A block; n is a multiple of the lanes, `start` its place in the run. */
INLINE void add_pair(pair_state *s, const float *x, const float *y, size_t n, size_t start, float atol, float rtol) {
    float r[PAIR_LANES] = {0}, rr[PAIR_LANES] = {0}, d[PAIR_LANES] = {0}, a[PAIR_LANES] = {0}, dd[PAIR_LANES] = {0},
          rd[PAIR_LANES] = {0}, q[PAIR_LANES] = {0}, most[PAIR_LANES], largest[PAIR_LANES] = {0};
    int32_t within[PAIR_LANES], left_out[PAIR_LANES];
    memcpy(most, s->most, sizeof most);
    memcpy(within, s->within, sizeof within);
    memcpy(left_out, s->left_out, sizeof left_out);
    for (size_t i = 0; i < n; i += PAIR_LANES) {
        for (int k = 0; k < PAIR_LANES; k++) {
            float u = x[i + k], e = y[i + k] - u, f = magnitude(e), v = magnitude(u);
            r[k] += u;
            rr[k] += u * u;
            d[k] += e;
            a[k] += f;
            dd[k] += e * e;
            rd[k] += u * e;
            /* A reference of 0 leaves its place out: 0 is added. */
            float ratio = f / (v > 0 ? v : INFINITY);
            q[k] += ratio;
            most[k] = ratio > most[k] ? ratio : most[k];
            largest[k] = f > largest[k] ? f : largest[k];
            within[k] += f <= v * rtol + atol;
            left_out[k] += (v == 0) & (f > 0);
        }
    }
    memcpy(s->most, most, sizeof most);
    memcpy(s->within, within, sizeof within);
    memcpy(s->left_out, left_out, sizeof left_out);
    int more = 0;
    for (int k = 0; k < PAIR_LANES; k++) {
        s->sums[SUM_R][k] += r[k];
        s->sums[SUM_RR][k] += rr[k];
        s->sums[SUM_D][k] += d[k];
        s->sums[SUM_A][k] += a[k];
        s->sums[SUM_DD][k] += dd[k];
        s->sums[SUM_RD][k] += rd[k];
        s->sums[SUM_Q][k] += q[k];
        more |= largest[k] > s->largest;
    }
    if (more) {
        for (int k = 0; k < PAIR_LANES; k++) s->largest = largest[k] > s->largest ? largest[k] : s->largest;
        size_t i = 0;
        while (magnitude(y[i] - x[i]) != s->largest) i++;
        s->worst = start + i;
    }
}

/* n elements from `start` on as float32: in place if they are that already, else in `room`. Padded there with zeros to
 * whole lanes, which add nothing to any sum. */
INLINE const float *block_of(const char *data, int kind, size_t start, size_t n, float *room) {
    if (kind == FLOAT32) {
        const float *from = (const float *)data + start;
        if (n % PAIR_LANES == 0) return from;
        memcpy(room, from, n * sizeof *room);
    } else {
        gather(room, data + 2 * start, n, 2, BFLOAT16, 0);
    }
    for (; n % PAIR_LANES; n++) room[n] = 0;
    return room;
}

/* What PAIR_OUT of kernels.py names, of n > 0 aligned elements each. Returns 0, and leaves `out` alone, where float32
 * will not do: NaN or infinities, squares that overflow or lose digits. Two arrays of all zeros are fine. */
EXPORT CLONES int twinscope_pair(const void *reference, int kind_r, const void *candidate, int kind_c, intptr_t count,
                                 float atol, float rtol, double *out) {
    if (count <= 0 || count > INT32_MAX || kind_r < 0 || kind_r > BFLOAT16 || kind_c < 0 || kind_c > BFLOAT16) return 0;
    pair_state s;
    memset(&s, 0, sizeof s);
    float room_r[BLOCK], room_c[BLOCK];
    size_t total = (size_t)count, padding = 0;
    int identical = 1;
    for (size_t start = 0; start < total; start += BLOCK) {
        size_t used = total - start < BLOCK ? total - start : BLOCK;
        size_t n = (used + PAIR_LANES - 1) / PAIR_LANES * PAIR_LANES;
        const float *x = block_of(reference, kind_r, start, used, room_r);
        const float *y = block_of(candidate, kind_c, start, used, room_c);
        padding = n - used;
        identical = identical && memcmp(x, y, used * sizeof *x) == 0;
        add_pair(&s, x, y, n, start, atol, rtol);
    }

    double sum[SUMS] = {0}, rel_most = 0;
    int64_t within = -(int64_t)padding, left_out = 0;
    for (int k = 0; k < PAIR_LANES; k++) {
        for (int which = 0; which < SUMS; which++) sum[which] += s.sums[which][k];
        rel_most = s.most[k] > rel_most ? s.most[k] : rel_most;
        within += s.within[k];
        left_out += s.left_out[k];
    }
    double tiny = 1e-30 * (double)total;
    if (!(sum[SUM_RR] < INFINITY && sum[SUM_DD] < INFINITY)) return 0;
    if (!(sum[SUM_DD] >= tiny || s.largest == 0)) return 0;
    double c = sum[SUM_R] + sum[SUM_D], rc = sum[SUM_RR] + sum[SUM_RD];
    double cc = sum[SUM_RR] + 2 * sum[SUM_RD] + sum[SUM_DD];
    int all_zero = sum[SUM_RR] < tiny, cancels = cc * 4 < sum[SUM_RR], steep = !(sum[SUM_Q] < INFINITY);
    if (all_zero || cancels || steep) { /* seldom: another look, in float64 */
        double wide_c = 0, wide_rc = 0, wide_cc = 0, wide_q = 0, wide_most = 0;
        for (size_t start = 0; start < total; start += BLOCK) {
            size_t used = total - start < BLOCK ? total - start : BLOCK;
            const float *x = block_of(reference, kind_r, start, used, room_r);
            const float *y = block_of(candidate, kind_c, start, used, room_c);
            for (size_t i = 0; i < used; i++) {
                double u = x[i], v = y[i];
                if (all_zero && u != 0) return 0;
                wide_c += v;
                wide_rc += u * v;
                wide_cc += v * v;
                if (steep && u != 0) {
                    double ratio = (double)magnitude(y[i] - x[i]) / (u < 0 ? -u : u);
                    wide_q += ratio;
                    wide_most = ratio > wide_most ? ratio : wide_most;
                }
            }
        }
        if (cancels) {
            c = wide_c;
            rc = wide_rc;
            cc = wide_cc;
        }
        if (steep) {
            sum[SUM_Q] = wide_q;
            rel_most = wide_most;
        }
    }
    out[0] = sum[SUM_R];
    out[1] = c;
    out[2] = sum[SUM_RR];
    out[3] = rc;
    out[4] = cc;
    out[5] = sum[SUM_D];
    out[6] = sum[SUM_A];
    out[7] = sum[SUM_DD];
    out[8] = s.largest;
    out[9] = s.largest > 0 ? (double)s.worst : -1;
    out[10] = sum[SUM_Q];
    out[11] = rel_most;
    out[12] = (double)left_out;
    out[13] = (double)within;
    out[14] = identical;
    return 1;
}

EXPORT int twinscope_abi(void) { return ABI; }
