//! The seams to the outside: clock, randomness, task spawning, files and hash seeds, each behind one file, so that a test can replace them.
//!
//! [`faults`] are what a test can plant to see whether the others notice.
//!
//! Nothing else in the engine reads a clock, draws a random number, spawns a task, or opens a file that must survive.

pub mod clock;
pub mod faults;
pub mod files;
pub mod hash;
pub mod objects;
pub mod random;
pub mod spawn;
