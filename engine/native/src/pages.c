/* By one thread, which waits for no other. What it writes goes past its cache: nobody reads it soon
   enough, and half of the time of a copy is reading what it is about to write over. Each way goes
   through what it reads in order. */
#include "pages.h"

static __m512i finite(__m512i values) {
  __m512i exponent = _mm512_set1_epi16(0x7f80);
  return _mm512_maskz_mov_epi16(
      _mm512_cmpneq_epi16_mask(_mm512_and_si512(values, exponent), exponent), values);
}

void pcg_put_pages(const pcg_pages *pool, const int32_t *pages, int32_t num_pages,
                   const uint8_t *body) {
  for (int32_t page = 0; page < num_pages; page++) {
    for (int32_t plane = 0; plane < pool->num_planes; plane++) {
      const uint8_t *from = body + ((int64_t)page * pool->num_planes + plane) * pool->part;
      uint8_t *to = pool->planes + plane * pool->stride + pages[page] * pool->part;
      for (int64_t at = 0; at < pool->part; at += 64) {
        _mm512_stream_si512((__m512i *)(to + at), finite(_mm512_loadu_si512(from + at)));
      }
    }
  }
  _mm_sfence();
}

void pcg_take_pages(const pcg_pages *pool, const int32_t *pages, int32_t num_pages, uint8_t *body) {
  for (int32_t plane = 0; plane < pool->num_planes; plane++) {
    for (int32_t page = 0; page < num_pages; page++) {
      const uint8_t *from = pool->planes + plane * pool->stride + pages[page] * pool->part;
      uint8_t *to = body + ((int64_t)page * pool->num_planes + plane) * pool->part;
      for (int64_t at = 0; at < pool->part; at += 64) {
        _mm512_stream_si512((__m512i *)(to + at), _mm512_load_si512((const __m512i *)(from + at)));
      }
    }
  }
  _mm_sfence();
}
