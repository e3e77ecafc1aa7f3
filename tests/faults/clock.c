/* A wall clock of one's own for a process (LD_PRELOAD): the true one and the seconds that the file named by
 * TEST_CLOCK holds (8 bytes, mapped, so that a jump is seen at once). Waits until a time of that clock are made ones
 * of the true one. The monotonic clock is not touched. libfaketime cannot serve: with it, Python's sleep fails. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static const volatile long *ahead;

static long seconds(void) {
    if (!ahead) {
        static const long none = 0;
        const char *path = getenv("TEST_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        ahead = mapped == MAP_FAILED ? &none : mapped;
    }
    return *ahead;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += seconds();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
    return clock_gettime(CLOCK_REALTIME, now) ? 0 : base;
}

/* Small numbers are times of the monotonic clock, which a condition may go by as well. */
static struct timespec truly(const struct timespec *until) {
    struct timespec result = *until;
    if (until->tv_sec > 1000000000) result.tv_sec -= seconds();
    return result;
}

#define NEXT(name) __typeof__(name) *next = (__typeof__(name) *)(dlvsym(RTLD_NEXT, #name, "GLIBC_2.3.2") ?: dlsym(RTLD_NEXT, #name))

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    NEXT(pthread_cond_timedwait);
    struct timespec real = truly(until);
    return next(condition, mutex, &real);
}

int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *until) {
    NEXT(cnd_timedwait);
    struct timespec real = truly(until);
    return next(condition, mutex, &real);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    NEXT(sem_timedwait);
    struct timespec real = truly(until);
    return next(semaphore, &real);
}
