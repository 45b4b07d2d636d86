package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/blob"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// A source is the driver of an open source. The caller of openSource closes it.
type source interface {
	drivers.Driver
	drivers.Sampler
	io.Closer
}

// openSource opens a source with the driver for its kind.
func openSource(ctx context.Context, c config.Source, log *slog.Logger) (s source, err error) {
	switch {
	case c.URL != "":
		s, err = openBucket(ctx, c.URL, log)
	default:
		s, err = posix.OpenDir(c.Path)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func openBucket(ctx context.Context, url string, log *slog.Logger) (*blob.Bucket, error) {
	l, err := blob.Parse(url)
	if err != nil {
		return nil, err
	}
	return blob.Open(ctx, l, log)
}

// parseURL returns an error if the source has a URL that the driver cannot parse. It is called
// before the URL is printed or logged, so that a URL with a secret is refused first.
func parseURL(c *config.Config) error {
	if c.Source.URL == "" {
		return nil
	}
	if _, err := blob.Parse(c.Source.URL); err != nil {
		return &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("%s: source.url: %w", c.Origin("source.url"), err),
			Remedy: "A bucket has a URL, such as s3://bucket/prefix?region=eu-west-1. `milkweed mount --help` lists the options.",
		}
	}
	return nil
}
