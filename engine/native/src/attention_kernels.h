/* What attention does to one tile: a few query rows of one KV head against one segment of keys.
   Knows no pages and no threads.

   Every sum is over ascending keys or dimensions into one accumulator, and a key that a row does
   not see adds an exact zero: a row's values do not depend on the rows beside it, nor on how many
   keys beyond its own the tile looks at. */
#ifndef PCG_ATTENTION_KERNELS_H
#define PCG_ATTENTION_KERNELS_H

#include "pcg.h"

enum {
  PCG_SEGMENT = 512, /* keys whose weights share one maximum, at multiples of it: changes bits */
  PCG_KEYS = 16,     /* keys packed side by side: the lanes of a vector of scores */
  PCG_TILE = 6,      /* query rows of a tile at most, */
  PCG_SIDE = 4,      /* and vectors side by side: 24 accumulators */
  PCG_SCORES = PCG_SEGMENT + 16, /* floats from one row's scores to the next's, */
  PCG_WEIGHTS = PCG_SEGMENT +
      32, /* and bf16 weights: no power of two, or rows would share few sets of the cache */
};

/* A row that has seen no key: less than any score, yet finite, so that differences are no NaN. */
#define PCG_NOTHING (-1e30f)

/* The keys `[first, end)` of a segment that a row sees. */
typedef struct {
  int32_t first, end;
} pcg_seen;

static inline int32_t pcg_least(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t pcg_greatest(int32_t a, int32_t b) { return a > b ? a : b; }

/* Sixteen keys and values of one head, `stride` apart, into their place in a packed segment:
   keys `[num_dims / 2][16 keys][2]`, values `[16 keys / 2][num_dims][2]`. `num_dims` is a multiple
   of 16. */
void pcg_pack_keys(const uint16_t *keys, size_t stride, int32_t num_dims, uint16_t *packed);
void pcg_pack_values(const uint16_t *values, size_t stride, int32_t num_dims, uint16_t *packed);

/* scores[row][key] of `num_rows` query rows, `num_dims` apart, and the blocks of sixteen keys
   `[first, end)`. */
void pcg_score(const uint16_t *query, int32_t num_rows, int32_t num_dims, const uint16_t *packed,
               pcg_seen blocks, float *scores);

/* The greatest score that a row sees, of one key at least. */
float pcg_greatest_score(const float *scores, pcg_seen seen);

/* A row's weights 2^(scale * score - most) of the blocks, and of those that make even numbers of
   them: zero of a key that it does not see. Returns their sum. */
float pcg_weigh(const float *scores, float scale, float most, pcg_seen seen, pcg_seen blocks,
                uint16_t *weights);

/* sums[row][dim] = weights times values, over the blocks; `stride` floats from one row's sums to
   the next's. */
void pcg_sum_values(const uint16_t *weights, int32_t num_rows, int32_t num_dims,
                    const uint16_t *packed, pcg_seen blocks, float *sums, size_t stride);

/* What a row has seen so far and what it sees in the next segment, into the former: sums
   `[num_dims]`, greatest, total. */
void pcg_merge(float *sums, float *most, float *total, const float *new_sums, float new_most,
               float new_total, int32_t num_dims);

/* sums / total, rounded to bf16. */
void pcg_finish(const float *sums, float total, int32_t num_dims, uint16_t *out);

#endif
