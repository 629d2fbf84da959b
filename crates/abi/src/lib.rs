//! The Linux system-call interface as data: call tables, argument kinds, flag and errno names.
