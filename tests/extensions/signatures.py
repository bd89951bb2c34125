"""Loads the compiled test libraries inside a recorded child.

Every argument is a machine word: a size, an address, a descriptor. Every result is a word too, save RETURNS_INT's.
"""

import ctypes
import os
from pathlib import Path

# How many words each function takes.
WORDS = {
    0: """has_free_sized has_free_aligned_sized keep_dlsym use_one_arena vector_header_bytes refused_new slots_of_ring
          give_rings_back give_back_allocate give_back_matrix close_pages make_key kept_address
          give_growth_back""",
    1: """take_malloc take_valloc take_pvalloc refused_posix_memalign give_back give_back_unseen give_back_by_other_name
          take_strdup page_rounded give_back_chain take_stored take_stored_constant take_table give_back_table
          take_dlsym_default take_dlsym_next take_dlsym_handle take_dlvsym take_kept take_after_load
          map_anonymous map_anonymous64 map_reserved map_shared_anonymous map_refused detach_segment make_memfd
          grow_break map_shared_reserved attach_segment_of_child
          call_in_thread allocate_in_destructor allocate_in_fork allocate_in_thread_with_key
          take_new take_new_array take_new_nothrow take_new_aligned take_vector take_shared
          give_back_new give_back_new_array give_back_new_aligned give_back_vector allocate_in_thread_local_destructor
          take_allocate size_in_ring
          take_mallocx give_back_dallocx take_mi_malloc take_mi_new give_back_mi_free take_tc_malloc take_tc_new
          give_back_tc_free""",
    2: """take_calloc take_realloc take_aligned_alloc take_memalign take_posix_memalign give_back_sized take_chain
          reuse_unseen reuse_unseen_by_calloc map_fixed map_fixed_reserved map_file_readonly map_file_shared unmap
          open_reserved close_again make_readonly attach_segment checkerboard attach_twice
          allocate_in_named_thread allocate_in_grandchild churn_in_two_threads allocate_here_free_there take_matrix
          turn_rings grow_together bytes_of_growth
          take_rallocx give_back_sdallocx take_mi_calloc take_mi_realloc take_tc_realloc give_back_tc_delete_sized
          take_aligned_new take_aligned_new_nothrow give_back_new_sized give_back_aligned_new give_back_many""",
    3: """take_many grow_xallocx take_reallocarray give_back_aligned_sized remap remap_in_place allocate_in_threads
          map_shared_part map_shared_fixed""",
    4: "remap_onto",
}
RETURNS_INT = """
    has_free_sized has_free_aligned_sized use_one_arena refused_new refused_posix_memalign detach_segment make_memfd
    call_in_thread allocate_in_destructor allocate_in_fork unmap open_reserved close_again make_readonly checkerboard
    allocate_in_named_thread allocate_in_grandchild churn_in_two_threads allocate_here_free_there
    attach_twice allocate_in_threads turn_rings grow_together close_pages make_key allocate_in_thread_with_key"""
MAP_FAILED = 2**64 - 1


def load(name: str) -> ctypes.CDLL:
    library = ctypes.CDLL(os.fspath(Path(os.environ["HIWATER_TEST_LIBRARIES"], f"{name}.so")))
    for words, names in WORDS.items():
        for function_name in names.split():
            function = getattr(library, function_name, None)
            if function is not None:
                function.argtypes = [ctypes.c_size_t] * words
                function.restype = ctypes.c_int if function_name in RETURNS_INT.split() else ctypes.c_size_t
    return library
