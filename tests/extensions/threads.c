// Threads that Python does not know of.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct Task {
    size_t blocks, size;
};

static void* allocate_blocks(void* argument) {
    const struct Task* task = argument;
    for (size_t i = 0; i < task->blocks; ++i) {
        char* volatile block = malloc(task->size);  // kept for good: the test counts it
        block[0] = 1;
    }
    return NULL;
}

// Starts `count` threads at once, waits for all. Each keeps `blocks` blocks of `size` bytes.
int allocate_in_threads(size_t count, size_t blocks, size_t size) {
    static struct Task task;
    pthread_t threads[256];
    task = (struct Task){blocks, size};
    for (size_t i = 0; i < count; ++i)
        if (pthread_create(&threads[i], NULL, allocate_blocks, &task) != 0) return -1;
    for (size_t i = 0; i < count; ++i) pthread_join(threads[i], NULL);
    return 0;
}

static void* allocate_with_name(void* argument) {
    prctl(PR_SET_NAME, "named-in-c", 0, 0, 0);
    return allocate_blocks(argument);
}

int allocate_in_named_thread(size_t blocks, size_t size) {
    static struct Task task;
    pthread_t thread;
    task = (struct Task){blocks, size};
    if (pthread_create(&thread, NULL, allocate_with_name, &task) != 0) return -1;
    return pthread_join(thread, NULL);
}

// A thread that starts a thread: the grandchild's blocks still belong to the Python stack that began it all.
static void* start_grandchild(void* argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, allocate_blocks, argument) != 0) return argument;
    pthread_join(thread, NULL);
    return NULL;
}

int allocate_in_grandchild(size_t blocks, size_t size) {
    static struct Task task;
    pthread_t thread;
    void* failed = NULL;
    task = (struct Task){blocks, size};
    if (pthread_create(&thread, NULL, start_grandchild, &task) != 0) return -1;
    pthread_join(thread, &failed);
    return failed != NULL;
}

typedef void Callback(void);

static void* call_back(void* argument) {
    (*(Callback**)argument)();
    return NULL;
}

int call_in_thread(Callback* callback) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, call_back, &callback) != 0) return -1;
    return pthread_join(thread, NULL);
}

static pthread_key_t farewell_key;
static size_t farewell_size;

// Runs after the thread's function has returned, and after some other thread-local storage may be gone.
static void allocate_at_farewell(void* value) {
    (void)value;
    char* volatile block = malloc(farewell_size);
    block[0] = 1;
}

static void* set_farewell(void* argument) {
    pthread_setspecific(farewell_key, argument);
    return NULL;
}

int allocate_in_destructor(size_t size) {
    pthread_t thread;
    farewell_size = size;
    if (pthread_key_create(&farewell_key, allocate_at_farewell) != 0) return -1;
    if (pthread_create(&thread, NULL, set_farewell, &farewell_size) != 0) return -1;
    pthread_join(thread, NULL);
    return pthread_key_delete(farewell_key);
}

int use_one_arena(void) { return mallopt(M_ARENA_MAX, 1); }

struct Churn {
    size_t rounds, kept_size;
    pthread_barrier_t* start;
};

// realloc moves a block: between libc giving the old address to somebody else and a recorder noting it lies the race.
static void* churn(void* argument) {
    const struct Churn* task = argument;
    pthread_barrier_wait(task->start);
    void* moving = malloc(40);
    for (size_t i = 0; i < task->rounds; ++i) {
        moving = realloc(moving, 40 + (i % 7) * 64);
        char* volatile kept = malloc(task->kept_size);
        kept[0] = 1;
        moving = realloc(moving, 40);
    }
    free(moving);
    return NULL;
}

int churn_in_two_threads(size_t rounds, size_t kept_size) {
    pthread_barrier_t start;
    pthread_t threads[2];
    struct Churn task = {rounds, kept_size, &start};
    pthread_barrier_init(&start, NULL, 2);
    for (int i = 0; i < 2; ++i)
        if (pthread_create(&threads[i], NULL, churn, &task) != 0) return -1;
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    return pthread_barrier_destroy(&start);
}

// The child allocates and leaves without a word; nothing of it may be found in the parent's books.
int allocate_in_fork(size_t size) {
    pid_t child = fork();
    if (child == 0) {
        char* volatile block = malloc(size);
        memset(block, 1, size);
        free(malloc(size / 2));
        _exit(7);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// One thread allocates, another frees: blocks cross threads.
static void* free_chain(void* head) {
    while (head) {
        void* next = *(void**)head;
        free(head);
        head = next;
    }
    return NULL;
}

int allocate_here_free_there(size_t count, size_t size) {
    void* head = NULL;
    for (size_t i = 0; i < count; ++i) {
        void** block = malloc(size);
        *block = head;
        head = block;
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, free_chain, head) != 0) return -1;
    return pthread_join(thread, NULL);
}

// Threads that allocate and free at once, each in a ring of blocks of its own, until all rings were full together at
// least once. Then each frees half of its neighbour's ring, and the rest is kept until it is given back.
enum { kMostRings = 8, kSlots = 256 };

struct Ring {
    size_t index, threads, rounds;
    pthread_barrier_t* meet;
};

static void* rings[kMostRings][kSlots];

// Some are large enough for a table of their own.
size_t size_in_ring(size_t slot) { return 24 + slot % 37 * 40; }
size_t slots_of_ring(void) { return kSlots; }

static void* turn_ring(void* argument) {
    const struct Ring* ring = argument;
    void** mine = rings[ring->index];
    for (size_t slot = 0; slot < kSlots; ++slot) mine[slot] = malloc(size_in_ring(slot));
    pthread_barrier_wait(ring->meet);
    for (size_t round = 0; round < ring->rounds; ++round) {
        const size_t slot = round * 101 % kSlots;
        free(mine[slot]);
        mine[slot] = malloc(size_in_ring(slot));
    }
    pthread_barrier_wait(ring->meet);
    void** others = rings[(ring->index + 1) % ring->threads];
    for (size_t slot = 0; slot < kSlots; slot += 2) {
        free(others[slot]);
        others[slot] = NULL;
    }
    return NULL;
}

void give_rings_back(void) {
    for (size_t i = 0; i < kMostRings; ++i)
        for (size_t slot = 0; slot < kSlots; ++slot) {
            free(rings[i][slot]);
            rings[i][slot] = NULL;
        }
}

// Threads that keep blocks at once, so that the total rises at nearly each event. They replace one large block in
// turns, each after the last is freed: there are never two.
enum { kKeptBytes = 24, kTemporaryBytes = 8, kLargeBytes = 1000000, kWork = 200 };

struct Kept {
    struct Kept* next;
    char more[kKeptBytes - sizeof(struct Kept*)];
};

static struct Kept* kept[kMostRings];
static void* large;
static pthread_mutex_t coming_and_going = PTHREAD_MUTEX_INITIALIZER;

static void* keep_blocks(void* argument) {
    const struct Ring* task = argument;
    pthread_barrier_wait(task->meet);
    for (size_t round = 0; round < task->rounds; ++round) {
        char* volatile temporary = malloc(kTemporaryBytes);
        free(temporary);
        for (volatile int work = 0; work < kWork; ++work) continue;
        struct Kept* one = malloc(sizeof *one);
        one->next = kept[task->index];
        kept[task->index] = one;
        if (round % 64 != 0) continue;
        pthread_mutex_lock(&coming_and_going);
        void* const last = large;
        large = last == NULL ? malloc(kLargeBytes) : NULL;
        free(last);
        pthread_mutex_unlock(&coming_and_going);
    }
    pthread_barrier_wait(task->meet);
    if (task->index == 0 && large == NULL) large = malloc(kLargeBytes);
    return NULL;
}

// The bytes at the end, which are the most.
size_t bytes_of_growth(size_t threads, size_t rounds) { return threads * rounds * kKeptBytes + kLargeBytes; }

static int run_rings(size_t threads, size_t rounds, void* (*run)(void*)) {
    static pthread_barrier_t meet;
    static struct Ring tasks[kMostRings];
    pthread_t started[kMostRings];
    pthread_barrier_init(&meet, NULL, (unsigned)threads);
    for (size_t i = 0; i < threads; ++i) {
        tasks[i] = (struct Ring){i, threads, rounds, &meet};
        if (pthread_create(&started[i], NULL, run, &tasks[i]) != 0) return -1;
    }
    for (size_t i = 0; i < threads; ++i) pthread_join(started[i], NULL);
    return pthread_barrier_destroy(&meet);
}

int turn_rings(size_t threads, size_t rounds) { return run_rings(threads, rounds, turn_ring); }

int grow_together(size_t threads, size_t rounds) {
    mallopt(M_MMAP_THRESHOLD, 2 * kLargeBytes);  // a mapping would interrupt what threads do at once
    return run_rings(threads, rounds, keep_blocks);
}

void give_growth_back(void) {
    free(large);
    large = NULL;
    for (size_t i = 0; i < kMostRings; ++i)
        for (struct Kept* one = kept[i]; one != NULL; one = kept[i]) {
            kept[i] = one->next;
            free(one);
        }
}

// Children that end at once; how many of them did as they should.
int fork_again_and_again(int times) {
    int well = 0;
    for (int i = 0; i < times; ++i) {
        const pid_t child = fork();
        if (child == 0) _exit(7);
        int status = 0;
        if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7) ++well;
    }
    return well;
}
