package benchmark

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/child"
	"github.com/milkweedfs/milkweed/cmd/internal/reader"
)

// A trainer is a process that emulates a training with several accelerators. Each has
// reader processes of its own, which prefetch batches. An accelerator is a sleep.

const (
	trainReaders = 4 // of each accelerator
	prefetch     = 2 // batches in flight for each reader
)

// A Barrier is when the accelerators of a training wait for each other.
type Barrier string

// The barriers.
const (
	BarrierBatch Barrier = "batch" // after each step, as DLIO does
	BarrierEpoch Barrier = "epoch" // at the end of an epoch
	BarrierNone  Barrier = "none"  // the utilisation of each ends with its own last step
)

// Barriers are all of them.
var Barriers = []Barrier{BarrierBatch, BarrierEpoch, BarrierNone}

// caption describes the barrier.
func (b Barrier) caption() string {
	switch b {
	case BarrierBatch:
		return "The accelerators wait for each other after each step."
	case BarrierEpoch:
		return "The accelerators wait for each other at the end of the epoch."
	}
	return "The accelerators do not wait for each other."
}

// A trainRequest is one epoch of a training.
type trainRequest struct {
	Batches [][][]reader.Extent `json:"batches"` // by reader, in the order of the steps; trainReaders for each accelerator
	Compute time.Duration       `json:"compute"` // of each step
	Barrier Barrier             `json:"barrier"`
}

// A trainReply is the result of an epoch.
type trainReply struct {
	Seconds     float64 `json:"seconds"`
	Bytes       int64   `json:"bytes"`                 // read
	Utilization float64 `json:"utilization,omitempty"` // mean of the accelerators; 0 without computation
	Error       string  `json:"error,omitempty"`       // why the epoch failed
}

// ServeTrainer is the main function of a trainer process: it does each epoch that
// it decodes from in and writes the results to out.
func ServeTrainer(ctx context.Context, in io.Reader, out io.Writer, accelerators int) error {
	readers, err := reader.Start(ctx, accelerators*trainReaders, nil)
	if err != nil {
		return err
	}
	defer readers.Stop()
	return child.Serve(in, out, func(r trainRequest, reply func(any) error) error {
		return reply(train(readers, accelerators, r))
	})
}

// An accelerator is the part of one accelerator in an epoch.
type accelerator struct {
	first int // of its readers
	steps []bench.Step
	bytes int64
	err   error
}

// train does an epoch.
func train(readers *reader.Group, accelerators int, r trainRequest) trainReply {
	start := time.Now()
	all := make([]accelerator, accelerators)
	barrier := newBarrier(accelerators)
	var running sync.WaitGroup
	for i := range all {
		all[i].first = i * trainReaders
		running.Go(func() {
			defer barrier.leave()
			all[i].err = all[i].train(readers, start, r, barrier)
		})
	}
	running.Wait()
	reply := trainReply{Seconds: time.Since(start).Seconds()}
	end := 0.0 // of the last step
	for _, a := range all {
		reply.Bytes += a.bytes
		if a.err != nil {
			reply.Error = a.err.Error()
		}
		if n := len(a.steps); n > 0 {
			end = max(end, a.steps[n-1].End)
		}
	}
	for _, a := range all {
		if n := len(a.steps); n > 0 && r.Barrier != BarrierNone {
			a.steps[n-1].End = end
		}
		if r.Compute > 0 {
			reply.Utilization += bench.Utilization(a.steps) / float64(accelerators)
		}
	}
	return reply
}

// train does the steps of one accelerator.
func (a *accelerator) train(readers *reader.Group, start time.Time, r trainRequest, barrier *barrier) error {
	shares := r.Batches[min(a.first, len(r.Batches)):min(a.first+trainReaders, len(r.Batches))]
	return forEachBatch(readers, a.first, shares, func(batch reader.Result) error {
		a.bytes += batch.Bytes
		began := time.Now()
		err := computeFor(r.Compute)
		took := time.Since(began).Seconds()
		if r.Barrier == BarrierBatch {
			barrier.wait()
		}
		a.steps = append(a.steps, bench.Step{Compute: took, End: time.Since(start).Seconds()})
		return err
	})
}

// A barrier lets several goroutines wait for each other.
type barrier struct {
	mu      sync.Mutex
	arrived sync.Cond
	members int
	waiting int
	rounds  int
}

func newBarrier(members int) *barrier {
	b := &barrier{members: members}
	b.arrived.L = &b.mu
	return b
}

// wait returns when all members wait.
func (b *barrier) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting++
	round := b.rounds
	b.open()
	for round == b.rounds {
		b.arrived.Wait()
	}
}

// leave makes the caller no member.
func (b *barrier) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members--
	b.open()
}

// open ends a round if all members wait; b.mu must be held.
func (b *barrier) open() {
	if b.waiting > 0 && b.waiting >= b.members {
		b.waiting = 0
		b.rounds++
		b.arrived.Broadcast()
	}
}

// forEachBatch reads all batches and calls f after each: first the first batch of
// each reader, then the second of each, and so on. While f runs, the readers read
// the next batches. The readers are those from the number first.
func forEachBatch(readers *reader.Group, first int, batches [][][]reader.Extent, f func(reader.Result) error) error {
	send := func(i, batch int) error {
		if batch >= len(batches[i]) {
			return nil
		}
		return readers.Send(first+i, reader.Task{Kind: reader.Batch, Extents: batches[i][batch]})
	}
	for batch := range prefetch {
		for i := range batches {
			if err := send(i, batch); err != nil {
				return err
			}
		}
	}
	for batch, more := 0, true; more; batch++ {
		more = false
		for i := range batches {
			if batch >= len(batches[i]) {
				continue
			}
			more = true
			r, err := readers.Receive(first + i)
			if err != nil {
				return err
			}
			if err := send(i, batch+prefetch); err != nil {
				return err
			}
			if err := f(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// computeFor sleeps, with an error of about 50 µs. That of time.Sleep is sometimes
// a millisecond, which is too much for a short step.
func computeFor(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	until := unix.NsecToTimespec(now.Nano() + int64(d))
	for {
		err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &until, nil)
		if err != unix.EINTR {
			return err
		}
	}
}

// A trainer is a trainer process.
type trainer struct{ process *child.Process }

func startTrainer(ctx context.Context, accelerators int) (trainer, error) {
	p, err := child.Start(child.Command(ctx, "bench", "train", "--accelerators", strconv.Itoa(accelerators)))
	return trainer{p}, err
}

// train does an epoch.
func (t trainer) train(r trainRequest) (reply trainReply, err error) {
	if err = t.process.Send(r); err == nil {
		err = t.process.Receive(&reply)
	}
	if err == nil && reply.Error != "" {
		err = errors.New(reply.Error)
	}
	return reply, err
}

func (t trainer) stop() { t.process.Stop() }
