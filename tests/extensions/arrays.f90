! ALLOCATE and DEALLOCATE, as numerical code uses them.
module arrays
    use iso_c_binding
    implicit none
    real(c_double), allocatable, save :: kept(:), work(:, :)
contains
    subroutine take_allocate(count) bind(c)
        integer(c_size_t), value :: count
        allocate(kept(count))
    end subroutine

    subroutine give_back_allocate() bind(c)
        deallocate(kept)
    end subroutine

    subroutine take_matrix(rows, columns) bind(c)
        integer(c_size_t), value :: rows, columns
        allocate(work(rows, columns))
    end subroutine

    subroutine give_back_matrix() bind(c)
        deallocate(work)
    end subroutine
end module
