/* The team of threads: they spin for a moment between two pieces of work, then sleep. Knows nothing
   of what they do. */
#define _GNU_SOURCE
#include "pcg.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
  SPINS = 20000, /* pauses, some 400 microseconds, before a waiting thread lets others run */
  IDLE_SPINS = 30000, /* before a worker without work sleeps: longer than what is between two steps,
                         for who sleeps must wake */
};

typedef struct {
  pthread_t handle;
  pcg_team *team;
  int thread;
} worker;

typedef struct {
  _Alignas(64) void *memory;
  size_t nbytes;
} scratch;

struct pcg_team {
  _Alignas(64) atomic_uint turn; /* of pieces of work; workers wait for it to change */
  atomic_int sleepers;
  pcg_work work; /* NULL ends the workers */
  void *context;
  _Alignas(64) atomic_int arrived;
  _Alignas(64) atomic_uint phase; /* of barriers */
  _Alignas(64) atomic_int next;
  _Alignas(64) int num_threads;
  int num_started;
  scratch shared[PCG_NUM_SHARED];
  scratch *scratches; /* of each thread */
  worker *workers;
};

static void futex(atomic_uint *word, int operation, unsigned value) {
  syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

void pcg_barrier(pcg_team *team) {
  unsigned phase = atomic_load_explicit(&team->phase, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) == team->num_threads - 1) {
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    atomic_store_explicit(&team->phase, phase + 1, memory_order_release);
    return;
  }
  for (int spins = 0; atomic_load_explicit(&team->phase, memory_order_acquire) == phase; spins++) {
    if (spins < SPINS) {
      _mm_pause();
    } else {
      sched_yield();
    }
  }
}

int pcg_next(pcg_team *team) {
  return atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);
}

int pcg_team_size(const pcg_team *team) { return team->num_threads; }

static void *grow(scratch *memory, size_t nbytes) {
  if (memory->nbytes < nbytes) {
    free(memory->memory);
    memory->nbytes = (nbytes + 4095) / 4096 * 4096;
    memory->memory = aligned_alloc(64, memory->nbytes);
    if (memory->memory == NULL) {
      memory->nbytes = 0;
    }
  }
  return memory->memory;
}

void *pcg_scratch(pcg_team *team, int thread, size_t nbytes) {
  return grow(&team->scratches[thread], nbytes);
}

void *pcg_shared(pcg_team *team, pcg_purpose purpose, size_t nbytes) {
  return grow(&team->shared[purpose], nbytes);
}

static void await_turn(pcg_team *team, unsigned turn) {
  for (int spins = 0; spins < IDLE_SPINS; spins++) {
    if (atomic_load_explicit(&team->turn, memory_order_acquire) != turn) {
      return;
    }
    _mm_pause();
  }
  atomic_fetch_add(&team->sleepers, 1);
  while (atomic_load(&team->turn) == turn) {
    futex(&team->turn, FUTEX_WAIT, turn);
  }
  atomic_fetch_sub(&team->sleepers, 1);
}

static void *run_worker(void *argument) {
  worker *self = argument;
  pcg_team *team = self->team;
  for (unsigned turn = 0;; turn++) {
    await_turn(team, turn);
    if (team->work == NULL) {
      return NULL;
    }
    team->work(team->context, self->thread, team);
    pcg_barrier(team);
  }
}

static void begin_turn(pcg_team *team, pcg_work work, void *context) {
  team->work = work;
  team->context = context;
  atomic_fetch_add(&team->turn, 1);
  if (atomic_load(&team->sleepers) > 0) {
    futex(&team->turn, FUTEX_WAKE, INT_MAX);
  }
}

void pcg_team_run(pcg_team *team, pcg_work work, void *context) {
  begin_turn(team, work, context);
  work(context, 0, team);
  pcg_barrier(team);
}

void pcg_team_free(pcg_team *team) {
  if (team == NULL) {
    return;
  }
  begin_turn(team, NULL, NULL);
  for (int index = 0; index < team->num_started; index++) {
    pthread_join(team->workers[index].handle, NULL);
  }
  for (int thread = 0; team->scratches != NULL && thread < team->num_threads; thread++) {
    free(team->scratches[thread].memory);
  }
  free(team->scratches);
  for (int purpose = 0; purpose < PCG_NUM_SHARED; purpose++) {
    free(team->shared[purpose].memory);
  }
  free(team->workers);
  free(team);
}

pcg_team *pcg_team_new(int num_threads) {
  pcg_team *team = aligned_alloc(64, sizeof(pcg_team));
  if (team == NULL) {
    return NULL;
  }
  *team = (pcg_team){.num_threads = num_threads};
  team->scratches = aligned_alloc(64, sizeof(scratch) * (size_t)num_threads);
  team->workers = calloc((size_t)num_threads, sizeof(worker));
  if (team->scratches == NULL || team->workers == NULL) {
    free(team->scratches);
    team->scratches = NULL;
    pcg_team_free(team);
    return NULL;
  }
  for (int thread = 0; thread < num_threads; thread++) {
    team->scratches[thread] = (scratch){0};
  }
  for (int thread = 1; thread < num_threads; thread++) {
    worker *self = &team->workers[thread - 1];
    *self = (worker){.team = team, .thread = thread};
    if (pthread_create(&self->handle, NULL, run_worker, self) != 0) {
      pcg_team_free(team);
      return NULL;
    }
    team->num_started++;
  }
  return team;
}
