// Slows down the clocks of a process, from slow_down() on: it runs under valgrind, which makes it
// 40 times as slow, and what it does now and then should not count 40 times as much.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FACTOR 40
#define LONGEST_MS 50000
#define NEXT(name, ...)                                   \
    static int (*next)(__VA_ARGS__);                      \
    if (!next) next = (int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static int slow;
static long long began[2];  // by clock: 0 is that of the calendar, 1 the monotonic one

static long long in_ns(const struct timespec *t) { return t->tv_sec * 1000000000LL + t->tv_nsec; }

static struct timespec from_ns(long long ns) {
    return (struct timespec){.tv_sec = ns / 1000000000LL, .tv_nsec = ns % 1000000000LL};
}

void slow_down(void) {
    for (int clock = 0; clock < 2; clock++) {
        struct timespec now;
        syscall(SYS_clock_gettime, clock, &now);
        began[clock] = in_ns(&now);
    }
    slow = 1;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int result = syscall(SYS_clock_gettime, clock, t);
    int is_calendar = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int is_monotonic = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE;
    if (slow && (is_calendar || is_monotonic)) {
        long long begun = began[is_monotonic];
        *t = from_ns(begun + (in_ns(t) - begun) / FACTOR);
    }
    return result;
}

// Return the deadline that the kernel is to wait for. Only the calendar is past 2001.
static struct timespec real(const struct timespec *t) {
    long long begun = began[t->tv_sec < 1000000000LL];
    return slow ? from_ns(begun + (in_ns(t) - begun) * FACTOR) : *t;
}

static int longer(int ms) { return slow && ms > 0 && ms < LONGEST_MS ? ms * FACTOR : ms; }

int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!next) next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec at = real(t);
    return next(c, m, &at);
}

int pthread_cond_clockwait(pthread_cond_t *c, pthread_mutex_t *m, clockid_t k,
                           const struct timespec *t) {
    NEXT(pthread_cond_clockwait, pthread_cond_t *, pthread_mutex_t *, clockid_t,
         const struct timespec *);
    struct timespec at = real(t);
    return next(c, m, k, &at);
}

int sem_timedwait(sem_t *s, const struct timespec *t) {
    NEXT(sem_timedwait, sem_t *, const struct timespec *);
    struct timespec at = real(t);
    return next(s, &at);
}

int sem_clockwait(sem_t *s, clockid_t k, const struct timespec *t) {
    NEXT(sem_clockwait, sem_t *, clockid_t, const struct timespec *);
    struct timespec at = real(t);
    return next(s, k, &at);
}

int epoll_pwait(int fd, struct epoll_event *events, int count, int ms, const sigset_t *mask) {
    NEXT(epoll_pwait, int, struct epoll_event *, int, int, const sigset_t *);
    return next(fd, events, count, longer(ms), mask);
}
