//! The simulators: a service under a CPU limit, tenants of a device, a shared machine.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use isolation::{Simulation, simulate as simulate_machine};
use qos::{Objective, Operation, Scheduler, SharedDevice, TenantRequest, TenantSpec};
use throttle::{Demand, JobQueue, Limit, LimitedHost, LimitedService, ThreadPool, Work, simulate};

fn throttle(criterion: &mut Criterion) {
    let work = Work::Random {
        per_s: 400.0,
        demand: Demand::Fixed { cpu_us: 5000.0 },
    };
    let service = LimitedService {
        pools: vec![ThreadPool {
            name: "worker".into(),
            threads: 8,
            processes: 0,
            setting: None,
            set_by: None,
            queue: JobQueue::Shared,
            work,
        }],
    };
    criterion.bench_function("simulators/throttle/20s", |bencher| {
        bencher.iter(|| {
            let limit = Limit::cores(2.5);
            black_box(simulate(&service, &LimitedHost::new(4), &limit, 20.0, 1))
        });
    });
}

/// A thousand reads of one tenant: enqueued, submitted and completed.
fn tenants(criterion: &mut Criterion) {
    criterion.bench_function("simulators/qos/1000_reads", |bencher| {
        bencher.iter(|| {
            let device = Arc::new(SharedDevice::new(Some(qos::simulated::p3600_model())));
            let mut scheduler = Scheduler::new(device).unwrap();
            let objective = Objective {
                p95_us: 500,
                iops: 20_000,
                read_share: 0.9,
            };
            let tenant = scheduler
                .add_tenant(TenantSpec::latency_critical(objective))
                .unwrap();
            let mut submitted = 0_u64;
            for i in 1..=1000_u64 {
                let request = TenantRequest {
                    operation: Operation::Read,
                    len_bytes: 4096,
                    token: i,
                };
                let now_ns = i * 50_000;
                scheduler
                    .enqueue(tenant, request, now_ns)
                    .unwrap_or_else(|_| panic!("the queue is full"));
                scheduler.round(now_ns, &mut |_, token| submitted += token);
            }
            black_box(submitted)
        });
    });
}

fn machine(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("simulators/isolation");
    group.sample_size(10);
    group.bench_function("two_hours", |bencher| {
        bencher.iter(|| black_box(simulate_machine(&Simulation::default())));
    });
    group.finish();
}

criterion_group!(benches, throttle, tenants, machine);
criterion_main!(benches);
