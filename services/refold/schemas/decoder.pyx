# cython: language_level=3, binding=False
# The part of the compiled decoder that is the same for every schema; refold.schemas.pyx appends the rest. A function
# reads at p.at and moves on. Nothing is taken from there before it is known to lie before p.end.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject_GenericSetAttr as put  # object.__setattr__: the classes are frozen
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint64_t

cdef struct Place:
    const unsigned char *at
    const unsigned char *end

cdef int refuse() except -1:
    raise ValueError

cdef inline int byte(Place *p) except -1:
    if p.at == p.end:
        refuse()
    p.at += 1
    return p.at[-1]

cdef inline uint64_t number(Place *p) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t n = byte(p), more
    cdef int shift = 0
    if n < 128:
        return n
    n &= 127
    while True:
        shift += 7
        more = byte(p)
        if shift == 63 and more > 1:
            refuse()
        n |= (more & 127) << shift
        if more < 128:
            return n

cdef inline object long(Place *p):
    cdef uint64_t n = number(p)
    return <int64_t>((n >> 1) ^ (0 - (n & 1)))

cdef inline object boolean(Place *p):
    cdef int n = byte(p)
    if n > 1:
        refuse()
    return n == 1

cdef inline const char *skip(Place *p, Py_ssize_t *size) except NULL:
    cdef uint64_t n = number(p)
    if n & 1 or n >> 1 > <uint64_t>(p.end - p.at):
        refuse()
    size[0] = n >> 1
    p.at += size[0]
    return <const char *>p.at - size[0]

cdef inline object string(Place *p):
    cdef Py_ssize_t size
    cdef const char *start = skip(p, &size)
    return PyUnicode_DecodeUTF8(start, size, NULL) if size else ''

cdef inline object bytes_(Place *p):
    cdef Py_ssize_t size
    cdef const char *start = skip(p, &size)
    return PyBytes_FromStringAndSize(start, size)

# Items of the next block. A negative count is followed by the size of the block in bytes, which Python skips as well.
cdef inline uint64_t count(Place *p) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t n = number(p)
    if not n & 1:
        return n >> 1
    number(p)
    return (n >> 1) + 1

cdef object map_(Place *p):
    cdef dict found = {}
    cdef uint64_t left = count(p)
    while left:
        key = string(p)
        if key in found:
            refuse()
        found[key] = string(p)
        left -= 1
        if not left:
            left = count(p)
    return found

cdef object array(Place *p, object (*item)(Place *)):
    cdef list found = []
    cdef uint64_t left = count(p)
    while left:
        found.append(item(p))
        left -= 1
        if not left:
            left = count(p)
    return found

# None for what is not wholly in order: Python says what is wrong with it.
cdef object whole(data, Py_ssize_t start, object (*root)(Place *)):
    cdef Place p
    if type(data) is not bytes or not 0 <= start <= PyBytes_GET_SIZE(data):
        return None
    p.at = <const unsigned char *>PyBytes_AS_STRING(data) + start
    p.end = <const unsigned char *>PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data)
    try:
        found = root(&p)
    except ValueError:
        return None
    return found if p.at == p.end else None
