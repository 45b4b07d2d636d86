package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/bench"
)

// A trainer of the benchmark is a process that stands for a training with one
// accelerator. Its readers are processes of their own, each of which reads up to
// prefetch batches ahead; the accelerator is a sleep.

const (
	trainReaders = 4
	prefetch     = 2 // batches of each reader
)

// A lesson is one epoch for a trainer.
type lesson struct {
	Batches [][][]part    `json:"batches"` // of each reader
	Compute time.Duration `json:"compute"` // of a step
}

func newBenchTrainer() *cobra.Command {
	return &cobra.Command{
		Use:     "train",
		Short:   "Read batches and compute nothing for as long as an accelerator would",
		Long:    "Train is a trainer that `milkweed bench` starts.",
		Example: `  echo '{"batches": [[[{"path": "/mnt/a", "length": 0}]]], "compute": 1000000}' | milkweed bench train`,
		Hidden:  true,
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			crew, err := startCrew(c.Context(), trainReaders, nil, c.ErrOrStderr())
			if err != nil {
				return err
			}
			defer crew.stop()
			return answerAll(c.InOrStdin(), c.OutOrStdout(), crew.train)
		},
	}
}

// train is an epoch.
func (c readerCrew) train(l lesson) answer {
	start := time.Now()
	var (
		steps []bench.Step
		read  int64
	)
	err := c.steps(l.Batches, func(a answer) error {
		read += a.Bytes
		began := time.Now()
		err := computeFor(l.Compute)
		steps = append(steps, bench.Step{Compute: time.Since(began).Seconds(), End: time.Since(start).Seconds()})
		return err
	})
	a := answer{Seconds: time.Since(start).Seconds(), Bytes: read, Utilization: bench.Utilization(steps)}
	if l.Compute == 0 {
		a.Utilization = 0
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// steps has the readers read all batches, and calls f with each in turn: the
// first of each reader, then the second of each, and so on.
func (c readerCrew) steps(batches [][][]part, f func(answer) error) error {
	if len(batches) > len(c) {
		return errors.New("there are more shares than readers")
	}
	ask := func(reader, batch int) error {
		if batch >= len(batches[reader]) {
			return nil
		}
		return c[reader].send(errand{Do: readBatch, Parts: batches[reader][batch]})
	}
	for batch := range prefetch {
		for reader := range batches {
			if err := ask(reader, batch); err != nil {
				return err
			}
		}
	}
	for batch, more := 0, true; more; batch++ {
		more = false
		for reader := range batches {
			if batch >= len(batches[reader]) {
				continue
			}
			more = true
			a, err := c[reader].receive()
			if err != nil {
				return err
			}
			if err := ask(reader, batch+prefetch); err != nil {
				return err
			}
			if err := f(a); err != nil {
				return err
			}
		}
	}
	return nil
}

// computeFor sleeps, to within some 50 µs: time.Sleep, at times, to within a
// millisecond, which is much of a short step.
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
