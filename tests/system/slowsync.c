/* Loaded before libc: every fdatasync takes 50 ms longer, and is counted when it has ended. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

static volatile int ended;

int slow_syncs(void) { return ended; }

int fdatasync(int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    usleep(50000);
    int answer = real(file);
    __sync_fetch_and_add(&ended, 1);
    return answer;
}
