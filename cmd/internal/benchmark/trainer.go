package benchmark

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
	"github.com/milkweedfs/milkweed/cmd/internal/child"
	"github.com/milkweedfs/milkweed/cmd/internal/reader"
)

// A trainer is a process that emulates a training with one accelerator. It has
// reader processes of its own, each of which prefetches batches. The accelerator
// is a sleep.

const (
	trainReaders = 4
	prefetch     = 2 // batches in flight for each reader
)

// A trainRequest is one epoch of a training.
type trainRequest struct {
	Batches [][][]reader.Extent `json:"batches"` // by reader, in the order of the steps
	Compute time.Duration       `json:"compute"` // of each step
}

// A trainReply is the result of an epoch.
type trainReply struct {
	Seconds     float64 `json:"seconds"`
	Bytes       int64   `json:"bytes"`                 // read
	Utilization float64 `json:"utilization,omitempty"` // of the accelerator; 0 without computation
	Error       string  `json:"error,omitempty"`       // why the epoch failed
}

// ServeTrainer is the main function of a trainer process: it does each epoch that
// it decodes from in and writes the results to out.
func ServeTrainer(ctx context.Context, in io.Reader, out io.Writer) error {
	readers, err := reader.Start(ctx, trainReaders, nil)
	if err != nil {
		return err
	}
	defer readers.Stop()
	return child.Serve(in, out, func(r trainRequest, reply func(any) error) error {
		return reply(train(readers, r))
	})
}

// train does an epoch.
func train(readers *reader.Group, r trainRequest) trainReply {
	start := time.Now()
	var (
		steps []bench.Step
		read  int64
	)
	err := forEachBatch(readers, r.Batches, func(batch reader.Result) error {
		read += batch.Bytes
		began := time.Now()
		err := computeFor(r.Compute)
		steps = append(steps, bench.Step{Compute: time.Since(began).Seconds(), End: time.Since(start).Seconds()})
		return err
	})
	reply := trainReply{Seconds: time.Since(start).Seconds(), Bytes: read}
	if r.Compute > 0 {
		reply.Utilization = bench.Utilization(steps)
	}
	if err != nil {
		reply.Error = err.Error()
	}
	return reply
}

// forEachBatch reads all batches and calls f after each: first the first batch of
// each reader, then the second of each, and so on. While f runs, the readers read
// the next batches.
func forEachBatch(readers *reader.Group, batches [][][]reader.Extent, f func(reader.Result) error) error {
	if len(batches) > trainReaders {
		return errors.New("more shares than readers")
	}
	send := func(i, batch int) error {
		if batch >= len(batches[i]) {
			return nil
		}
		return readers.Send(i, reader.Task{Kind: reader.Batch, Extents: batches[i][batch]})
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
			r, err := readers.Receive(i)
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

func startTrainer(ctx context.Context) (trainer, error) {
	p, err := child.Start(child.Command(ctx, "bench", "train"))
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
