/* Whole pages of KV between the pool and memory where they lie one after the other. Knows no tokens
   and no tiers. */
#ifndef PCG_PAGES_H
#define PCG_PAGES_H

#include "pcg.h"

/* The pool as planes, keys and values of each layer, `stride` bytes apart. A page has `part` bytes
   in each of them, those of page 0 first; all of it is in multiples of 64. */
typedef struct {
  uint8_t *planes;
  int64_t stride, part;
  int32_t num_planes;
} pcg_pages;

/* Put pages of bf16 that lie in `body`, plane after plane each, into the pool, with zeros for what
   is not finite. */
PCG_API void pcg_put_pages(const pcg_pages *pool, const int32_t *pages, int32_t num_pages,
                           const uint8_t *body);

/* The other way, as it is. */
PCG_API void pcg_take_pages(const pcg_pages *pool, const int32_t *pages, int32_t num_pages,
                            uint8_t *body);

#endif
