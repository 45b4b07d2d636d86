package main

import (
	"fmt"
	"net"
	"os"
)

// notifyEnv is the environment variable in which a service manager names its socket: sd_notify(3).
const notifyEnv = "NOTIFY_SOCKET"

// notifyReady tells the service manager that has started this process, if it waits for that, that the
// mount is ready.
func notifyReady() error {
	path := os.Getenv(notifyEnv)
	if path == "" {
		return nil
	}
	os.Unsetenv(notifyEnv)                  // it is not for child processes
	conn, err := net.Dial("unixgram", path) // a path that begins with @ is abstract
	if err != nil {
		return fmt.Errorf("%s: %w", notifyEnv, err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("READY=1")); err != nil {
		return fmt.Errorf("%s: %w", notifyEnv, err)
	}
	return nil
}
