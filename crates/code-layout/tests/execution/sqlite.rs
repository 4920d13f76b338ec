//! Debian's own SQLite, stripped and position-independent, laid out again while it answers queries.
#![allow(unsafe_code, reason = "calls the library")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

use code_layout::{LayoutOrder, LayoutPlan, PatchSelection, Profile};

use crate::process::{Counters, Program};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0";

type Row = extern "C" fn(*mut c_void, c_int, *const *const c_char, *const *const c_char) -> c_int;
type Open = extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type Close = extern "C" fn(*mut c_void) -> c_int;
type Execute =
    extern "C" fn(*mut c_void, *const c_char, Row, *mut c_void, *mut *mut c_char) -> c_int;

extern "C" fn row(
    out: *mut c_void,
    columns: c_int,
    values: *const *const c_char,
    _names: *const *const c_char,
) -> c_int {
    // SAFETY: `out` is the string that `answers` passes; SQLite passes `columns` values, NULL or a
    // C string.
    unsafe {
        let out = &mut *out.cast::<String>();
        for column in 0..usize::try_from(columns).unwrap_or(0) {
            let value = *values.add(column);
            if !value.is_null() {
                out.push_str(&CStr::from_ptr(value).to_string_lossy());
            }
            out.push('|');
        }
        out.push('\n');
    }
    0
}

const QUERIES: &[&str] = &[
    "create table t(id integer primary key, name text, x real)",
    "with recursive n(i) as (select 1 union all select i+1 from n where i<800)
     insert into t select i, printf('name-%05d-%x', i*7919%1000, i), i*1.5 from n",
    "create index t_name on t(name)",
    "select count(*), sum(x), min(name), max(name) from t where name like 'name-00%'",
    "select a.id, b.id from t a join t b on b.name > a.name and b.id < a.id where a.id % 97 = 3 order by 1 desc, 2 limit 20",
    "select substr(name, 1, 8) k, count(*), avg(x) from t group by k having count(*) > 1 order by k limit 30",
    "update t set x = x * 2, name = upper(name) where id % 5 = 0",
    "delete from t where id % 11 = 0",
    "select json_group_array(name) from (select name from t order by name limit 5)",
    "select date('2020-02-29', '+1 year'), strftime('%s', '2001-01-01'), round(3.14159, 2), hex(zeroblob(4))",
    "select not a column",
    "pragma integrity_check",
    "with recursive f(a, b) as (select 0, 1 union all select b, a+b from f limit 60) select max(a) from f",
    "select name, row_number() over (order by x desc) from t where id < 40 order by name",
];

fn answers(program: &Program) -> String {
    let open: Open = unsafe_function(program, c"sqlite3_open");
    let close: Close = unsafe_function(program, c"sqlite3_close");
    let execute: Execute = unsafe_function(program, c"sqlite3_exec");
    let mut database = std::ptr::null_mut();
    assert_eq!(open(c":memory:".as_ptr(), &raw mut database), 0);
    let mut out = String::new();
    for query in QUERIES {
        let query = CString::new(*query).expect("no NUL");
        let mut error = std::ptr::null_mut();
        let code = execute(
            database,
            query.as_ptr(),
            row,
            (&raw mut out).cast(),
            &raw mut error,
        );
        out.push_str(&format!("= {code}\n"));
    }
    assert_eq!(close(database), 0);
    out
}

fn unsafe_function<F: Copy>(program: &Program, name: &CStr) -> F {
    let address = program.symbol(name);
    assert_eq!(size_of::<F>(), size_of::<u64>());
    // SAFETY: `F` is the type that sqlite3.h gives the function of this name.
    unsafe { std::mem::transmute_copy(&address) }
}

#[test]
fn sqlite_in_every_order() {
    let program = Program::load(Path::new(LIBRARY), c"sqlite3_open");
    let expected = answers(&program);
    assert!(
        expected.contains("ok|") && expected.contains("= 1\n"),
        "{expected}"
    );
    let functions = program.functions();
    let all = PatchSelection::ALL;
    let empty = Profile::default();
    for order in [
        LayoutOrder::Original,
        LayoutOrder::Random(1),
        LayoutOrder::Random(2),
    ] {
        let plan = LayoutPlan::new(functions.clone(), &empty, order);
        let installed = program.install(&plan, all, None);
        assert_eq!(answers(&program), expected, "{order:?}");
        drop(installed);
    }
    let counting = LayoutPlan::counting(functions.clone(), &empty);
    let counters = Counters::near(program.bias, counting.counters());
    let area = counters.area();
    let installed = program.install(&counting, PatchSelection::default(), Some(area));
    assert_eq!(answers(&program), expected);
    drop(installed);
    let profile = counting.profile(&program.image, &counters.read());

    // The same as samples, a tenth of them: what was not sampled on the way is emitted too.
    let mut sampled = Profile::default();
    for (start, counts) in &profile.functions {
        for (offset, count) in &counts.blocks {
            if count / 10 > 0 {
                sampled.add_sample(start + u64::from(*offset), count / 10);
            }
        }
    }
    let hottest = sampled.hottest(&program.image, 0.99, 100);
    assert_eq!(hottest.len(), 100);
    let hot = functions
        .iter()
        .filter(|function| hottest.contains(&function.id))
        .cloned()
        .collect();
    let installed = program.install(
        &LayoutPlan::new(hot, &sampled, LayoutOrder::Profiled),
        all,
        None,
    );
    assert!(installed.emitted.functions.len() > 50);
    assert_eq!(answers(&program), expected);
    drop(installed);

    let plan = LayoutPlan::new(functions, &profile, LayoutOrder::Profiled);
    let installed = program.install(&plan, all, None);
    assert_eq!(answers(&program), expected);
    // What did not run is left out: most of it.
    let emitted = installed.emitted.code.len() as u64;
    assert!(
        emitted * 2
            < program
                .image
                .segments()
                .iter()
                .map(|each| each.file_bytes)
                .sum::<u64>(),
        "{emitted}"
    );
    drop(installed);
    assert_eq!(answers(&program), expected);
}
