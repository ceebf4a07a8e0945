/* acc[j] = max(acc[j], alpha[i] + T[i][j]): the inner loop of a max-plus product over a 16 KiB tile that stays in the
 * first-level cache. SHARE sequences use each loaded T vector, so a loop that is bound by loads shows against one that
 * is bound by the add and max units. */
#include <pthread.h>
#include <stddef.h>

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512 vec;
enum { LANES = 16 };
static inline vec load(const float *p) { return _mm512_load_ps(p); }
static inline vec spread(float x) { return _mm512_set1_ps(x); }
static inline vec addmax(vec acc, vec a, vec t) { return _mm512_max_ps(acc, _mm512_add_ps(a, t)); }
static inline void store(float *p, vec v) { _mm512_store_ps(p, v); }
#elif defined(__AVX__)
#include <immintrin.h>
typedef __m256 vec;
enum { LANES = 8 };
static inline vec load(const float *p) { return _mm256_load_ps(p); }
static inline vec spread(float x) { return _mm256_set1_ps(x); }
static inline vec addmax(vec acc, vec a, vec t) { return _mm256_max_ps(acc, _mm256_add_ps(a, t)); }
static inline void store(float *p, vec v) { _mm256_store_ps(p, v); }
#else
typedef float vec __attribute__((vector_size(16)));
enum { LANES = 4 };
static inline vec load(const float *p) { return *(const vec *)p; }
static inline vec spread(float x) { return (vec){x, x, x, x}; }
static inline vec addmax(vec acc, vec a, vec t) {
    vec s = a + t;
    return acc > s ? acc : s;
}
static inline void store(float *p, vec v) { *(vec *)p = v; }
#endif

enum { GROUP = 4, COLUMNS = GROUP * LANES, ROWS = 4096 / COLUMNS };

typedef struct {
    long repeats;
    int share;
    float sink;
} job;

#define SWEEP(SHARE)                                                                        \
    for (long r = 0; r < repeats; r++) {                                                    \
        vec acc[SHARE][GROUP];                                                              \
        for (int s = 0; s < SHARE; s++)                                                     \
            for (int v = 0; v < GROUP; v++) acc[s][v] = load(out + (s * GROUP + v) * LANES); \
        for (int i = 0; i < ROWS; i++) {                                                    \
            _Pragma("GCC unroll 8") for (int v = 0; v < GROUP; v++) {                       \
                vec t = load(tile + i * COLUMNS + v * LANES);                               \
                _Pragma("GCC unroll 8") for (int s = 0; s < SHARE; s++)                     \
                    acc[s][v] = addmax(acc[s][v], spread(alpha[s][i]), t);                  \
            }                                                                               \
        }                                                                                   \
        for (int s = 0; s < SHARE; s++)                                                     \
            for (int v = 0; v < GROUP; v++) store(out + (s * GROUP + v) * LANES, acc[s][v]); \
        alpha[0][r % ROWS] += 1e-3f;                                                        \
    }

static void *work(void *argument) {
    job *j = argument;
    long repeats = j->repeats;
    _Alignas(64) float tile[ROWS * COLUMNS], alpha[4][ROWS], out[4 * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) tile[i] = (float)(i * 2654435761u % 1000) * 1e-3f;
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < ROWS; i++) alpha[s][i] = (float)((i + s) * 40503u % 997) * 1e-3f;
    for (int i = 0; i < 4 * COLUMNS; i++) out[i] = 0.0f;
    if (j->share == 1) SWEEP(1)
    else if (j->share == 2) SWEEP(2)
    else SWEEP(4)
    for (int i = 0; i < 4 * COLUMNS; i++) j->sink += out[i];
    return NULL;
}

/* Runs `repeats` sweeps on each of `threads` threads; returns the cells done, or -1 if a thread could not start. */
double roofline_addmax(int threads, long repeats, int share, float *sink) {
    enum { MOST = 256 };
    pthread_t ids[MOST];
    job jobs[MOST];
    if (threads < 1 || threads > MOST) return -1.0;
    for (int k = 0; k < threads; k++) jobs[k] = (job){repeats, share, 0.0f};
    for (int k = 1; k < threads; k++)
        if (pthread_create(&ids[k], NULL, work, &jobs[k])) return -1.0;
    work(&jobs[0]);
    for (int k = 1; k < threads; k++) pthread_join(ids[k], NULL);
    for (int k = 0; k < threads; k++) *sink += jobs[k].sink;
    return (double)threads * (double)repeats * share * ROWS * COLUMNS;
}
