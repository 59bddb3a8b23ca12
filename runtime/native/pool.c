/* Memory and threads for runs of a network. A team is an arena, scratch memory, and threads that go through the steps
 * together, meeting after each, or each with images of its own if there are enough. Idle teams wait in the network's pool,
 * so a second caller gets a second team. */
#define _GNU_SOURCE /* sched_getcpu, sched_setaffinity */
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* Before a waiting thread lets others run, some 0.2 ms: another program that runs then, runs for milliseconds. Where threads
 * must share a core, it is each other that they let run. */
#define SPINS 10000
#define SPINS_ON_SHARED_CORES 200
#define SPINS_FOR_ORDER 2000 /* before a worker without work sleeps */

typedef struct team team;

typedef struct worker {
    team *team;
    int number;
    pthread_t thread;
} worker;

struct team {
    team *next;
    lrn_network *network;
    int threads, started, spins;
    pid_t process; /* whose threads these are: after a fork, the child has none of them */
    worker *workers; /* threads - 1 of them: the caller is the first of the team */
    uint8_t *arena;
    uint8_t *scratch;
    int64_t arena_bytes, scratch_stride, arena_stride; /* from a thread's to the next */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint order; /* raised for each run, under the lock */
    int stop, asleep;  /* written under the lock */
    const float *x;
    float *y;
    int64_t images, portions;
    atomic_llong taken; /* portions */
    int caller_core; /* where the caller was when it gave the order; -1: unknown */
    atomic_int arrived;
    atomic_uint meeting;
};

struct pool {
    pthread_mutex_t lock;
    team *idle;
};

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* All threads of the team wait for each other. */
static void meet(team *t) {
    const unsigned meeting = atomic_load_explicit(&t->meeting, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) == t->threads - 1) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&t->meeting, meeting + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&t->meeting, memory_order_acquire) == meeting; spins++) {
        if (spins < t->spins)
            pause_briefly();
        else
            sched_yield();
    }
}

/* A thread's share of all steps for one portion of images. */
static void go_through(team *t, share mine, int64_t portion) {
    const lrn_network *net = t->network;
    const lrn_value *in = net->values + net->input, *out = net->values + net->output;
    mine.transformed = mine.arena + whole(net->arena_bytes * t->images, ALIGNMENT);
    net->kernels->load(in, &mine, t->x + portion * t->images * numbers_of(in));
    if (mine.threads > 1) meet(t);
    for (int32_t i = 0; i < net->step_count; i++)
        for (int phase = 0; phase < net->steps[i].phases; phase++) {
            net->kernels->run(net, net->steps + i, &mine, phase);
            if (mine.threads > 1) meet(t);
        }
    net->kernels->store(out, &mine, t->y + portion * t->images * numbers_of(out));
}

static void work(team *t, int number) {
    share mine = {.arena = t->arena, .scratch = t->scratch + number * t->scratch_stride, .images = t->images, .threads = 1};
    if (t->portions == 1) {
        mine.thread = number;
        mine.threads = t->threads;
        go_through(t, mine, 0);
    } else {
        mine.arena += number * t->arena_stride;
        for (int64_t p; (p = atomic_fetch_add_explicit(&t->taken, 1, memory_order_relaxed)) < t->portions;) go_through(t, mine, p);
    }
    if (t->threads > 1) meet(t); /* nobody may still be writing when the caller reads */
}

/* Calls often follow each other closely, and to be woken takes longer than a small network: so look out for a while. */
static void await_order(team *t, unsigned done) {
    for (int spins = 0; spins < SPINS_FOR_ORDER; spins++) {
        if (atomic_load_explicit(&t->order, memory_order_acquire) != done) return;
        pause_briefly();
    }
    pthread_mutex_lock(&t->lock);
    t->asleep++;
    while (atomic_load_explicit(&t->order, memory_order_relaxed) == done) pthread_cond_wait(&t->wake, &t->lock);
    t->asleep--;
    pthread_mutex_unlock(&t->lock);
}

static void give_order(team *t, int stop) {
    pthread_mutex_lock(&t->lock);
    t->stop = stop;
    atomic_fetch_add_explicit(&t->order, 1, memory_order_release);
    if (t->asleep) pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

static int current_core(void) {
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
}

/* A worker that waits busily on the caller's core is not moved away by the system for a long time. */
static void leave_core(int core) {
#if defined(__linux__)
    cpu_set_t allowed, others;
    if (core < 0 || core != sched_getcpu() || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    others = allowed;
    CPU_CLR(core, &others);
    if (!CPU_COUNT(&others) || sched_setaffinity(0, sizeof others, &others)) return;
    sched_setaffinity(0, sizeof allowed, &allowed);
#else
    (void)core;
#endif
}

static void *serve(void *argument) {
    worker *w = argument;
    for (unsigned done = 0;; done++) {
        await_order(w->team, done);
        if (w->team->stop) return NULL;
        leave_core(w->team->caller_core);
        work(w->team, w->number);
    }
}

static void dismiss(team *t) {
    if (!t) return;
    if (t->process == getpid()) {
        give_order(t, 1);
        for (int i = 0; i < t->started; i++) pthread_join(t->workers[i].thread, NULL);
        pthread_mutex_destroy(&t->lock);
        pthread_cond_destroy(&t->wake);
    }
    free(t->workers);
    free(t->arena);
    free(t->scratch);
    free(t);
}

static void *aligned(int64_t bytes) {
    void *memory = NULL;
    return posix_memalign(&memory, ALIGNMENT, (size_t)bytes) ? NULL : memory;
}

static int spins_of(int threads) {
#if defined(__linux__)
    cpu_set_t allowed;
    if (!sched_getaffinity(0, sizeof allowed, &allowed) && CPU_COUNT(&allowed) < threads) return SPINS_ON_SHARED_CORES;
#else
    (void)threads;
#endif
    return SPINS;
}

static team *gather(lrn_network *net, int threads) {
    team *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->network = net;
    t->process = getpid();
    t->threads = threads;
    t->spins = spins_of(threads);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    t->scratch_stride = (net->scratch_bytes + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    t->scratch = aligned(t->scratch_stride * threads);
    t->workers = calloc((size_t)threads, sizeof *t->workers);
    int failed = !t->scratch || !t->workers;
    for (int i = 0; !failed && i < threads - 1; i++) {
        t->workers[i] = (worker){.team = t, .number = i + 1};
        failed = pthread_create(&t->workers[i].thread, NULL, serve, &t->workers[i]) != 0;
        t->started += !failed;
    }
    if (failed) {
        dismiss(t);
        return NULL;
    }
    return t;
}

/* An idle team of this size, or a new one. */
static team *borrow(lrn_network *net, int threads) {
    const pid_t process = getpid();
    pthread_mutex_lock(&net->pool->lock);
    team **place = &net->pool->idle;
    while (*place && ((*place)->threads != threads || (*place)->process != process)) place = &(*place)->next;
    team *t = *place;
    if (t) *place = t->next;
    pthread_mutex_unlock(&net->pool->lock);
    return t ? t : gather(net, threads);
}

static void give_back(lrn_network *net, team *t) {
    pthread_mutex_lock(&net->pool->lock);
    t->next = net->pool->idle;
    net->pool->idle = t;
    pthread_mutex_unlock(&net->pool->lock);
}

int pool_run(lrn_network *net, const float *x, int64_t images, int64_t portions, float *y, int threads) {
    team *t = borrow(net, threads);
    if (!t) return 1;
    /* vectors may read, not use, what lies behind */
    t->arena_stride = whole((net->arena_bytes + net->transformed_bytes) * images + 5 * ALIGNMENT, ALIGNMENT);
    const int64_t needed = t->arena_stride * (portions > 1 ? threads : 1);
    if (t->arena_bytes < needed) {
        free(t->arena);
        t->arena = aligned(needed);
        t->arena_bytes = t->arena ? needed : 0;
        if (!t->arena) {
            dismiss(t);
            return 1;
        }
    }
    t->x = x;
    t->y = y;
    t->images = images;
    t->portions = portions;
    atomic_store_explicit(&t->taken, 0, memory_order_relaxed);
    t->caller_core = threads > 1 ? current_core() : -1;
    if (threads > 1) give_order(t, 0);
    work(t, 0);
    give_back(net, t);
    return 0;
}

struct pool *pool_create(void) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool) pthread_mutex_init(&pool->lock, NULL);
    return pool;
}

void pool_destroy(struct pool *pool) {
    if (!pool) return;
    while (pool->idle) {
        team *t = pool->idle;
        pool->idle = t->next;
        dismiss(t);
    }
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
