// Has functions of the same names as libgcc's, as other unwinders do. (These ask libgcc all the same.)
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

int _Unwind_RaiseException(void *exception) {
    int (*const next)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "_Unwind_RaiseException");
    if (!next) abort();
    return next(exception);
}
