//! How many files this process may have open.

/// Below this a server with some dozens of views runs into it: each of their states has a dozen files open, more where it is large.
const ENOUGH: libc::rlim_t = 16 * 1024;

/// Raises the limit to the highest that the system allows this process: the usual one, 1,024, is for programs that wait with `select`. Where even that is low
/// the log says so.
pub fn allow_many() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to the struct that it is given, and nowhere else.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return;
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the call reads the struct that it is given.
    let allowed = if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } == 0 { limit.rlim_max } else { before };
    if allowed < ENOUGH {
        tracing::warn!("this process may open {allowed} files: too few for many views (ulimit -n, LimitNOFILE)");
    }
}
