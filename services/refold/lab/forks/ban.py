"""Sandbox of a fork's process: seccomp, an audit hook of Python, and limits beneath them.

Seccomp allows only the system calls of a replay, in all threads. Beneath it are an empty network namespace, a file size
limit of 0, and Landlock (Linux 5.13), which also hides memory and environment of other processes. The audit hook
refuses and counts the same effects by Python's names."""

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections import Counter
from functools import partial
from typing import Any

from refold.core.errors import UsageError
from refold.sdk.determinism.banned import EVENTS

# CLONE_NEWNET, CLONE_NEWUSER.
_NETWORK, _USER = 0x40000000, 0x10000000

_CREATE_RULESET, _RESTRICT_SELF, _NO_NEW_PRIVILEGES = 444, 446, 38
_FILES = (0x1FF3, 0x3FF3, 0x7FF3)
"""Landlock rights to refuse, by ABI version: all but reads of files and folders."""
# PR_SET_PDEATHSIG.
_PARENT_DIES = 1

_SECCOMP = {"x86_64": (0xC000003E, 317, 0), "aarch64": (0xC00000B7, 277, 1)}
"""AUDIT_ARCH, number of seccomp(2) and column of `_CALLS`, by machine."""
_CALLS = """
access:21: arch_prctl:158: brk:12:214 chdir:80:49 clock_getres:229:114 clock_gettime:228:113 clock_nanosleep:230:115
clone:56:220 close:3:57 dup:32:23 dup2:33: dup3:292:24 epoll_create1:291:20 epoll_ctl:233:21 epoll_pwait:281:22
epoll_wait:232: eventfd2:290:19 exit:60:93 exit_group:231:94 faccessat:269:48 fadvise64:221:223 fchdir:81:50
fcntl:72:25 fstat:5:80 fstatfs:138:44 futex:202:98 getcpu:309:168 getcwd:79:17 getdents64:217:61 getegid:108:177
geteuid:107:175 getgid:104:176 getgroups:115:158 getpid:39:172 getppid:110:173 getrandom:318:278 getrlimit:97:163
getrusage:98:165 gettid:186:178 gettimeofday:96:169 getuid:102:174 ioctl:16:29 lseek:8:62 lstat:6: madvise:28:233
membarrier:324:283 mmap:9:222 mprotect:10:226 mremap:25:216 munmap:11:215 nanosleep:35:101 newfstatat:262:79 open:2:
openat:257:56 pipe:22: pipe2:293:59 poll:7: ppoll:271:73 prctl:157:167 pread64:17:67 prlimit64:302:261 pselect6:270:72
read:0:63 readlink:89: readlinkat:267:78 readv:19:65 restart_syscall:219:128 rseq:334:293 rt_sigaction:13:134
rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigtimedwait:128:137 sched_getaffinity:204:123 sched_yield:24:124
select:23: set_robust_list:273:99 set_tid_address:218:96 setitimer:38:103 sigaltstack:131:132 signalfd4:289:74 stat:4:
statfs:137:43 statx:332:291 sysinfo:99:179 time:201: timerfd_create:283:85 timerfd_gettime:287:87
timerfd_settime:286:86 times:100:153 umask:95:166 uname:63:160 wait4:61:260 waitid:247:95 write:1:64 writev:20:66
"""
"""System calls that a replay needs: name, number on x86_64, number on aarch64."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Classic BPF: load a word; jump if equal, if at least, if a bit is set; return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _NO_SUCH_CALL = 0x7FFF0000, 0x50001, 0x50026
_ARGUMENTS = {
    "open": (1, _ANY_BIT, (_WRITES,)),
    "openat": (2, _ANY_BIT, (_WRITES,)),
    "clone": (0, _EQUAL, (0x3D0F00, 0x7D0F00)),  # a thread, as glibc and musl begin it
    "fcntl": (1, _EQUAL, (0, 1, 2, 3, 4, 1030)),  # copies and flags of a descriptor: no locks, leases and signals
    "ioctl": (1, _EQUAL, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # is it a terminal, its size, close-on-exec
    "prctl": (0, _EQUAL, (15, 16, 0x53564D41)),  # names of threads and of memory: no PR_SET_PDEATHSIG
    "prlimit64": (0, _EQUAL, (0,)),  # its own limits
}
"""Allowed arguments by system call: index, comparison of the low word, values."""

# gc.get_*: they could find the hook, and change it.
_MORE = """
os.chmod os.chown os.fork os.forkpty os.kill os.killpg os.link os.removexattr os.rmdir os.setxattr os.spawn os.symlink
os.truncate os.utime pty.spawn signal.pthread_kill syslog.syslog resource.prlimit resource.setrlimit fcntl.flock
fcntl.lockf ctypes.cdata ctypes.dlopen ctypes.dlsym ctypes.dlsym/handle ctypes.call_function socket.bind
socket.gethostbyname socket.sendmsg socket.sendto cpython.PyInterpreterState_New import
gc.get_objects gc.get_referents gc.get_referrers
"""
"""Audit events refused in forks only."""
_INTERPRETERS = frozenset({"_interpreters", "_xxsubinterpreters"})  # 3.13 reports none, 3.12 crashes if one is refused
# Agents must not cause these, but they have no effect outside.
_LET = frozenset({"time.sleep", "_thread.start_new_thread", "_thread.start_joinable_thread"})

PREVENTED: Counter[str] = Counter()
"""Refused audit events of this process, counted by name."""


def shut(*, network: bool = False) -> bool:
    """Restrict this process for good; True if the kernel refuses effects of C code too. `network` allows calls of
    models: then only the thread that runs agents is watched (`sdk.determinism`)."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that grows is an error then, and not the end
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    linux = ctypes.CDLL(None) if sys.platform == "linux" else None
    if linux:  # endless code would outlive its parent, which alone could end it
        linux.prctl(_PARENT_DIES, signal.SIGKILL)
    if network:
        return False
    alone = False
    if linux:
        # Before the filter, which refuses the calls of these three lines.
        linux.unshare(_NETWORK | _USER)
        linux.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        _lock(linux)
        alone = _filter(linux)
    # Last: the hook refuses `ctypes`, by which the kernel was called.
    # Neither a function of ours nor a cell of one: an app could find and change them.
    refused = frozenset(EVENTS) - _LET | frozenset(_MORE.split())
    sys.addaudithook(partial(_refuse, (_refuse, refused, _WRITES, _INTERPRETERS, UsageError, PREVENTED)))
    return alone


def _lock(linux: ctypes.CDLL) -> None:
    """Have Landlock refuse programs, file changes, TCP and signals, as far as the kernel can."""
    version = linux.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return
    rights = struct.pack("QQQ", _FILES[min(version, 3) - 1], 3, 3)[: 8 * (1 + (version > 3) + (version > 5))]
    rules = linux.syscall(_CREATE_RULESET, rights, len(rights), 0)
    if rules >= 0:
        linux.syscall(_RESTRICT_SELF, rules, 0)
        os.close(rules)


def _filter(linux: ctypes.CDLL) -> bool:
    """Install the seccomp filter for all threads; False without one for this machine or kernel."""
    machine = platform.machine()
    if machine not in _SECCOMP:
        return False
    code = seccomp_filter(machine)
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.cast(ctypes.c_char_p(code), ctypes.c_void_p).value)
    return bool(linux.syscall(_SECCOMP[machine][1], 1, 1, program) == 0)  # to set a filter, for all threads


def seccomp_filter(machine: str) -> bytes:
    arch, _, column = _SECCOMP[machine]
    refuse = (_RETURN, 0, 0, _REFUSE)
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), refuse]
    # ENOSYS makes libc do without newer calls: clone3, openat2, io_uring. On x86_64 it also covers the x32 ABI (bit
    # 30).
    steps += [(_LOAD, 0, 0, 0), (_AT_LEAST, 0, 1, 424), (_RETURN, 0, 0, _NO_SUCH_CALL)]
    for name, *numbers in (call.split(":") for call in _CALLS.split()):
        index, compare, values = _ARGUMENTS.get(name, (0, 0, ()))
        jumps = [(compare, *((len(values) - n, 0) if compare == _EQUAL else (0, 1)), v) for n, v in enumerate(values)]
        checks = [(_LOAD, 0, 0, 16 + 8 * index), *jumps, refuse] if jumps else []
        if numbers[column]:
            steps += [(_EQUAL, 0, len(checks) + 1, int(numbers[column])), *checks, (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in (*steps, refuse))


def _refuse(context: tuple[Any, ...], event: str, args: tuple[Any, ...]) -> None:
    # All objects that it uses, itself too, are in `context`: an app could replace globals.
    own, refused, writes, interpreters, error, counts = context
    if event not in refused and (event != "object.__setattr__" or args[0] is not own):
        return
    if (event == "open" and not args[2] & writes) or (event == "import" and args[0] not in interpreters):
        return
    counts[event] += 1
    raise error(f"a fork does nothing, and its app wants to ({event})", hint="--stub FILE answers a call")
