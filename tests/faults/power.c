/* Writes down what the processes that load this do to the files of a database, in order: for a test that then cuts the
   power. $POWER_OF is the database's path; files whose names begin with it count, and its folder, which is synced
   like a file. Everything goes to $POWER_LOG as records of this form, followed by the name and the data. */

#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATED = 1, WRITTEN, CUT, SYNCING, SYNCED, REMOVED };

struct record {
    uint32_t what, process;
    uint32_t name_length, data_length;
    uint64_t offset;
};

#define MOST 4096
#define ASIDE 900 /* a descriptor that is in nobody's way, and below the usual limit */
static char *names[MOST]; /* by descriptor; inherited through forks, as descriptors are */
static char database[PATH_MAX], folder[PATH_MAX];
static int book = -1;

__attribute__((constructor)) static void begin(void) {
    const char *of = getenv("POWER_OF"), *log = getenv("POWER_LOG");
    if (!of || !log)
        return;
    strncpy(database, of, sizeof database - 1);
    strncpy(folder, of, sizeof folder - 1);
    *strrchr(folder, '/') = 0;
    int file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    book = syscall(SYS_fcntl, file, F_DUPFD_CLOEXEC, ASIDE);
    syscall(SYS_close, file);
}

static void note(uint32_t what, const char *name, uint64_t offset, const void *data, size_t length) {
    struct record head = {what, getpid(), strlen(name), length, offset};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)name, head.name_length}, {(void *)data, length}};
    /* Some children close every descriptor that they do not know. */
    if (syscall(SYS_fcntl, book, F_GETFD) < 0)
        begin();
    syscall(SYS_writev, book, parts, length ? 3 : 2);
}

static int counts(const char *path) {
    size_t length = strlen(database);
    if (!length)
        return 0;
    if (strcmp(path, folder) == 0)
        return 1;
    return strncmp(path, database, length) == 0 && strcmp(path + length, "-shm") != 0 && !strchr(path + length, '/');
}

static int opened(int at, const char *path, int flags, mode_t mode) {
    int counted = counts(path);
    int new = counted && (flags & O_CREAT) && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0;
    int file = syscall(SYS_openat, at, path, flags, mode);
    if (file >= 0 && file < MOST) {
        free(names[file]);
        names[file] = counted ? strdup(path) : NULL;
        if (new)
            note(CREATED, path, 0, NULL, 0);
    }
    return file;
}

static const char *name_of(int file) { return file >= 0 && file < MOST ? names[file] : NULL; }

#define OPEN(NAME, ...)                                                                                                \
    va_list more;                                                                                                      \
    va_start(more, flags);                                                                                             \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                            \
    va_end(more);                                                                                                      \
    return opened(__VA_ARGS__, path, flags, mode)

int open(const char *path, int flags, ...) { OPEN(open, AT_FDCWD); }
int open64(const char *path, int flags, ...) { OPEN(open64, AT_FDCWD); }
int openat(int at, const char *path, int flags, ...) { OPEN(openat, at); }
int openat64(int at, const char *path, int flags, ...) { OPEN(openat64, at); }

int close(int file) {
    if (file >= 0 && file < MOST) {
        free(names[file]);
        names[file] = NULL;
    }
    return syscall(SYS_close, file);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
    ssize_t done = syscall(SYS_pwrite64, file, data, size, offset);
    if (name_of(file) && done > 0)
        note(WRITTEN, name_of(file), offset, data, done);
    return done;
}
ssize_t pwrite64(int file, const void *data, size_t size, off_t offset) { return pwrite(file, data, size, offset); }

ssize_t write(int file, const void *data, size_t size) {
    off_t offset = name_of(file) ? lseek(file, 0, SEEK_CUR) : 0;
    ssize_t done = syscall(SYS_write, file, data, size);
    if (name_of(file) && done > 0)
        note(WRITTEN, name_of(file), offset, data, done);
    return done;
}

int ftruncate(int file, off_t size) {
    int result = syscall(SYS_ftruncate, file, size);
    if (name_of(file) && result == 0)
        note(CUT, name_of(file), size, NULL, 0);
    return result;
}
int ftruncate64(int file, off_t size) { return ftruncate(file, size); }

/* What was written before the sync began survives, once it has ended. */
static int synced(int file, long number) {
    if (name_of(file))
        note(SYNCING, name_of(file), 0, NULL, 0);
    int result = syscall(number, file);
    if (name_of(file) && result == 0)
        note(SYNCED, name_of(file), 0, NULL, 0);
    return result;
}
int fsync(int file) { return synced(file, SYS_fsync); }
int fdatasync(int file) { return synced(file, SYS_fdatasync); }

int unlink(const char *path) {
    int result = syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (result == 0 && counts(path))
        note(REMOVED, path, 0, NULL, 0);
    return result;
}
