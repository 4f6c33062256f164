"""Numbers of the system calls that the seccomp filter judges, for each machine.

Sources: arch/x86/entry/syscalls/syscall_64.tbl and scripts/syscall.tbl (the generic table, used by aarch64) of Linux.
A test holds the numbers against the kernel headers of the machine it runs on.

Launch path: nothing is imported.
"""

MACHINES = ("x86_64", "aarch64")

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* of linux/audit.h: ELF machine, 64 bits, little-endian."""

X32_BIT = 0x40000000
"""Set in the numbers of the x32 ABI, which shares x86-64's AUDIT_ARCH."""

NEWEST = 471
"""rseq_slice_yield (Linux 7.0). What comes later nobody has judged yet."""

# Calls since Linux 5.1 have one number everywhere.
UNIFIED = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "openat2": 437,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
    "fchmodat2": 452,
    "file_setattr": 469,
    "listns": 470,
    "removexattrat": 466,
    "setxattrat": 463,
}

# name: (x86_64, aarch64); None where the machine has no such call.
OLDER: dict[str, tuple[int, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "connect": (42, 203),
    "creat": (85, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fcntl": (72, 25),
    "fchmodat": (268, 53),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "finit_module": (313, 273),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "futimesat": (261, None),
    "init_module": (175, 105),
    "io_setup": (206, 0),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "lchown": (94, None),
    "listen": (50, 201),
    "lookup_dcookie": (212, 18),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "migrate_pages": (256, 238),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "openat": (257, 56),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "setrlimit": (160, 164),
    "setsockopt": (54, 208),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vhangup": (153, 58),
}


def number(name: str, machine: str) -> int | None:
    """The number of a call on `machine`; None where the machine lacks it. KeyError for a name not in the tables."""
    if name in UNIFIED:
        return UNIFIED[name]
    return OLDER[name][MACHINES.index(machine)]
