/* What the files of the native library share: its versions, its vectors, and the team of threads.
   Knows no model. */
#ifndef PCG_H
#define PCG_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define PCG_API __attribute__((visibility("default")))

/* Changes with any exported function or structure: `engine/native/library.py` has the same number.
 */
#define PCG_ABI 3
/* Changes whenever equal inputs would get other bits: part of the fingerprint of KV. */
#define PCG_BITS 1

/* A fixed number of threads that do one piece of work at a time together; the caller is thread 0 of
   them. */
typedef struct pcg_team pcg_team;
typedef void (*pcg_work)(void *context, int thread, pcg_team *team);

/* NULL where there are no threads or no memory to be had. */
PCG_API pcg_team *pcg_team_new(int num_threads);
PCG_API void pcg_team_free(pcg_team *team);
PCG_API int pcg_team_size(const pcg_team *team);

/* Every thread of the team runs `work`; returns when the last has. Only from the thread that is no
   worker. */
void pcg_team_run(pcg_team *team, pcg_work work, void *context);

/* Returns when every thread of the team has called it. What was written before it is seen after it.
 */
void pcg_barrier(pcg_team *team);

/* 0, 1, 2, ... to whichever thread asks, since the last barrier: items of one loop, shared as
   threads become free. */
int pcg_next(pcg_team *team);

/* At least `nbytes` of memory of a thread's own, aligned to 64 bytes, until its next call. NULL
   without memory. */
void *pcg_scratch(pcg_team *team, int thread, size_t nbytes);

/* The same of the whole team, for each purpose: grown while it is idle. */
typedef enum { PCG_ATTENTION, PCG_STEP, PCG_NUM_SHARED } pcg_purpose;
void *pcg_shared(pcg_team *team, pcg_purpose purpose, size_t nbytes);

static inline __m512 pcg_widen(__m256i values) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

/* Rounded to nearest even; a NaN stays one. */
static inline __m256i pcg_narrow(__m512 values) { return (__m256i)_mm512_cvtneps_pbh(values); }

#endif
