package check

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

// openedUnsized bounds the files that FindUnsized opens, each of which takes a few requests.
const openedUnsized = 8

// FindUnsized returns the name of a sampled file that shows size 0 and is not known to be empty, or "". It opens
// some of the files that are Unsized. If ctx is done before the source has answered, nothing is known of them.
func FindUnsized(ctx context.Context, source any, sample map[string]drivers.Info) string {
	driver, ok := drivers.As[drivers.Driver](source)
	if !ok {
		return ""
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(sample)) {
		if sample[name].Unsized {
			names = append(names, name)
		}
	}
	opened := make([]string, min(len(names), openedUnsized))
	results := make([]chan error, len(opened))
	for i := range opened {
		opened[i], results[i] = names[i*len(names)/len(opened)], make(chan error, 1)
		go func() {
			results[i] <- panics.Do(func() error { return readEmpty(ctx, driver, opened[i]) })
		}()
	}
	for i, name := range opened {
		select {
		case err := <-results[i]:
			if errors.Is(err, drivers.ErrUnsized) || ctx.Err() != nil {
				return name
			}
		case <-ctx.Done():
			return name
		}
	}
	return ""
}

// readEmpty returns drivers.ErrUnsized if a file is not empty.
func readEmpty(ctx context.Context, driver drivers.Driver, name string) error {
	o, err := driver.Open(ctx, name)
	if err != nil {
		return err
	}
	defer o.Close()
	return drivers.CheckEmpty(ctx, o)
}
