/* Loaded before libc: the wall clock is off by as many seconds as the file STEP_FILE says; other clocks are not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long step_s(void) {
    long seconds = 0;
    FILE *file = fopen(getenv("STEP_FILE"), "r");
    if (file) {
        if (fscanf(file, "%ld", &seconds) != 1) seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(clock, now);
    if (clock == CLOCK_REALTIME && answer == 0) now->tv_sec += step_s();
    return answer;
}
