/* Preloaded, makes the k-th call of the C library's functions that open, write, sync or rename files fail.

   fail_files(k, error): the k-th call from now on fails with that errno; error 0 writes half of what it was given, once.
   failed_files(): whether that call has come. Calls that read are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long left = 0;
static int error_number = 0, came = 0;

void fail_files(long k, int error) {
  left = k;
  error_number = error;
  came = 0;
}

int failed_files(void) {
  left = 0;
  return came;
}

static int now(void) {
  if (left == 0 || --left > 0) return 0;
  came = 1;
  return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL                     \
  do {                           \
    if (error_number && now()) { \
      errno = error_number;      \
      return -1;                 \
    }                            \
  } while (0)
#define MODE                     \
  va_list list;                  \
  va_start(list, flags);         \
  int mode = va_arg(list, int);  \
  va_end(list)

int open(const char *path, int flags, ...) {
  MODE;
  if (flags & (O_CREAT | O_WRONLY | O_RDWR)) FAIL;
  return NEXT(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  MODE;
  if (flags & (O_CREAT | O_WRONLY | O_RDWR)) FAIL;
  return NEXT(open64)(path, flags, mode);
}

int fsync(int file) {
  FAIL;
  return NEXT(fsync)(file);
}

int rename(const char *from, const char *to) {
  FAIL;
  return NEXT(rename)(from, to);
}

ssize_t write(int file, const void *data, size_t size) {
  FAIL;
  if (!error_number && size > 1 && now()) size /= 2;
  return NEXT(write)(file, data, size);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
  FAIL;
  if (!error_number && count > 1 && now()) count /= 2;
  return NEXT(writev)(file, parts, count);
}
