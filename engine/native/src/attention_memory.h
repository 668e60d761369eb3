/* The memory that a thread takes to attend by a plan, and where in it each array lies. Knows no
   arithmetic. */
#ifndef PCG_ATTENTION_MEMORY_H
#define PCG_ATTENTION_MEMORY_H

#include "attention_plan.h"

enum { PCG_BLOCKS = PCG_SEGMENT / PCG_KEYS }; /* of keys in a segment */

/* A thread's memory: the segment as it is packed, the item's query rows, and what they have seen so
   far. */
typedef struct {
  uint16_t *keys, *values;   /* [PCG_BLOCKS] packed blocks */
  uint16_t *query;           /* [query rows][head_dim] */
  float *scores;             /* [PCG_TILE][PCG_SCORES] */
  uint16_t *weights;         /* [PCG_TILE][PCG_WEIGHTS] */
  float *new_sums;           /* [PCG_TILE][head_dim] */
  float *partials;           /* [query rows], as partial_floats says */
  int32_t *positions;        /* [query rows] */
  int64_t slots[PCG_BLOCKS]; /* the first slot of each block that is packed, or -1 */
} pcg_memory;

/* The bytes that a thread needs; with a `base`, also where in them its memory lies. */
size_t pcg_lay_out(const pcg_plan *plan, char *base, pcg_memory *own);

/* Have at hand the memory that attending by this plan takes; 0 where there is not enough. */
int pcg_reserve(const pcg_plan *plan, pcg_team *team);

#endif
