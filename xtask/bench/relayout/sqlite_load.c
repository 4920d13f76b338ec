/* A program with SQLite inside: looks rows up by their key for ever, and counts them in a file: sqlite_load COUNTER */
#include <fcntl.h>
#include <sqlite3.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROWS 20000

static void check(int code, int wanted) {
    if (code != wanted) _exit(70);
}

int main(int count, char **words) {
    if (count != 2) return 64;
    int file = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, sizeof(uint64_t))) return 66;
    volatile uint64_t *counter = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    sqlite3 *database;
    check(sqlite3_open(":memory:", &database), SQLITE_OK);
    check(sqlite3_exec(database, "create table t (k integer primary key, s text, n integer); create index i on t (n)", 0, 0, 0), SQLITE_OK);
    sqlite3_stmt *statement;
    check(sqlite3_prepare_v2(database, "insert into t values (?1, 'row ' || ?1, ?1 * 7919 % 104729)", -1, &statement, 0), SQLITE_OK);
    for (int key = 0; key < ROWS; key++) {
        sqlite3_bind_int(statement, 1, key);
        check(sqlite3_step(statement), SQLITE_DONE);
        sqlite3_reset(statement);
    }
    sqlite3_finalize(statement);
    /* By a range of the index, sorted by text: more of the library than one look-up runs. */
    check(sqlite3_prepare_v2(database, "select s, n from t where n >= ?1 and n < ?1 + 40 order by upper(s)", -1, &statement, 0), SQLITE_OK);
    for (uint32_t seed = 1;; seed = seed * 1664525 + 1013904223) {
        sqlite3_bind_int(statement, 1, (int)(seed >> 8) % 104000);
        int code;
        while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        }
        check(code, SQLITE_DONE);
        sqlite3_reset(statement);
        ++*counter;
    }
}
